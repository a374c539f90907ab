"""Reads tables in blocks of rows; the common part of the Parquet, Arrow and CSV readers."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tokenloom.errors import InputError, StorageError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.record_format import ReadOptions, SliceReader
from tokenloom.inputs.records import Block, NumberedRecord, ParsedBlock, Texts, UnusableLineError, not_utf8
from tokenloom.inputs.streams import object_version, open_bytes
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.optional import require
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import RemoteStream

_PLAIN_ROWS = 8 << 10
"""Number of rows whose text columns are converted to plain strings at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock(Block):
    """A block of table rows."""

    unit: ClassVar[str] = "row"

    batches: tuple[Any, ...]  # one or more `pyarrow.RecordBatch` objects with the requested columns
    bad_rows: Mapping[int, NumberedRecord] = field(default_factory=dict)  # by record number; empty rows in `batches`

    @property
    def num_text_bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        if self.bad_rows or any(batch.nbytes > self.max_record_bytes for batch in self.batches):
            return None
        columns = [texts for key in keys if (texts := _texts(self.batches, key)) is not None]
        if len(columns) < len(keys):
            return None
        return ParsedBlock(columns=tuple(columns), num_documents=sum(map(len, self.batches)))

    def records(self) -> Iterator[NumberedRecord]:
        for number, row in enumerate(itertools.chain.from_iterable(map(_rows, self.batches)), self.first_record):
            yield self.bad_rows.get(number) or NumberedRecord(number, row)

    def halves(self) -> tuple[TableBlock, TableBlock] | None:
        table = require("pyarrow", extra="parquet").Table.from_batches(self.batches)
        if not (middle := len(table) // 2):
            return None
        first, last = (tuple(part.to_batches()) for part in (table.slice(0, middle), table.slice(middle)))
        return replace(self, batches=first), replace(self, batches=last, first_record=self.first_record + middle)


class TableReader(SliceReader):
    """A base class for readers of tables, which decode one record batch at a time."""

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._num_read_rows = 0
        self._bad_rows: dict[int, NumberedRecord] = {}
        self._arrow = require("pyarrow", extra="parquet")
        self._source = self._open_source(slice_, options)
        try:
            with self._arrow_errors():
                self._first_record = 1 + self._open(slice_, options.keys)
        except BaseException:
            self._source.close()
            raise

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        return open_table_source(slice_.file)

    @abstractmethod
    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        """Opens the columns for `keys` (None: all columns); returns how many rows of the file precede the slice."""

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yields record batches with an empty row for each bad row; adds bad rows to `_bad_rows` before the yield."""

    def close(self) -> None:
        self._source.close()

    def read_blocks(self) -> Iterator[TableBlock]:
        batches = self._batches()
        pending: list[Any] = []
        num_pending_bytes = 0
        while True:
            with self._arrow_errors():
                batch = next(batches, None)
            if batch is None:
                break
            if batch.nbytes > (most := self._limits.memory_bytes):
                row = self._first_record + self._num_read_rows
                hint = "write smaller record batches or row groups, or raise `memory_bytes`"
                problem = f"a record batch takes {batch.nbytes} bytes, more than {most} (`memory_bytes`)"
                raise InputError(f"`{self._path}` row {row}: {problem}", hint=hint)
            self._num_read_rows += len(batch)
            for piece in self._pieces(batch):
                if pending and num_pending_bytes + piece.nbytes > self.block_bytes:
                    yield self._block(pending)
                    pending, num_pending_bytes = [], 0
                pending.append(piece)
                num_pending_bytes += piece.nbytes
            del batch
        if pending:
            yield self._block(pending)

    def _pieces(self, batch: Any) -> Iterator[Any]:
        """Splits a batch into batches that fit into a block; a row larger than a block is a batch of its own."""
        for first in range(0, len(batch), _PLAIN_ROWS):
            part = batch.slice(first, _PLAIN_ROWS)
            with self._arrow_errors():
                rows = self._arrow.RecordBatch.from_arrays(list(map(_plain, part.columns)), names=part.schema.names)
            yield from _halved(rows, min(self.block_bytes, self._limits.max_record_bytes))

    def _block(self, batches: list[Any]) -> TableBlock:
        stop = self._first_record + self.num_rows + sum(map(len, batches))
        block = TableBlock(
            path=self._path,
            first_record=self._first_record + self.num_rows,
            batches=tuple(batches),
            max_record_bytes=self._limits.max_record_bytes,
            bad_rows={number: self._bad_rows.pop(number) for number in list(self._bad_rows) if number < stop},
        )
        self.num_rows += sum(map(len, batches))
        self.num_text_bytes += block.num_text_bytes
        return block

    @contextmanager
    def _arrow_errors(self) -> Iterator[None]:
        """Converts errors of `pyarrow` to `InputError` and `StorageError`."""
        try:
            yield
        except (StorageError, InputError):
            raise
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StorageError(f"cannot read `{self._path}`: {error.strerror or error}") from error
            if not hasattr(self, "_first_record"):
                raise not_a_table(self._slice.file, error) from error
            kind, row = FORMATS[self._slice.file.format].title, self._first_record + self._num_read_rows
            raise InputError(f"`{self._path}` row {row} or later: damaged {kind} data: {error}") from error


def open_table_source(file: InputFile) -> Any:
    """Opens a file as a `pyarrow.NativeFile`."""
    arrow = require("pyarrow", extra="parquet")
    if is_remote(file.path):
        remote = RemoteFile(file.path, version=object_version(file))
        return arrow.PythonFile(RemoteStream(remote), mode="r")
    with storage_errors("open", file.path):
        if file.is_stream:
            return arrow.PythonFile(open_bytes(file), mode="r")
        return arrow.OSFile(file.path)


def not_a_table(file: InputFile, error: Exception) -> InputError:
    """Returns the error for a file that cannot be read in its format."""
    message = f"cannot read `{file.path}` as {FORMATS[file.format].title}: {error}"
    return InputError(message, hint="check the file's format; the file may be truncated or still being written")


def columns_of(schema: Any, keys: Sequence[str], path: str) -> list[str]:
    """Returns the distinct keys; raises `InputError` if a key has no column, or several columns have the key's name."""
    for key in keys:
        if (places := _places(schema, key)) is None:
            found = ", ".join(repr(name) for name in schema.names[:8]) or "none"
            raise InputError(f"`{path}`: no column {key!r}; found {found}", hint="set the key to one of these columns")
        if (count := schema.names.count(places[0])) > 1:
            raise InputError(f"`{path}`: {count} columns are named {places[0]!r}", hint="rename the columns")
    return list(dict.fromkeys(keys))


def _places(schema: Any, key: str) -> list[str] | None:
    """Splits a key, as `value_at` does, into the names of a column and of nested fields; None if a name is missing."""
    places: list[str] = []
    fields = schema
    while key not in (names := [field.name for field in fields]):
        head, _, key = key.partition(".")
        if not key or head not in names:
            return None
        places.append(head)
        fields = fields.field(head).type
        if not str(fields).startswith("struct<"):
            return None
    return [*places, key]


def _plain(column: Any) -> Any:
    """Converts dictionary-encoded, run-end-encoded or string-view text to plain strings; keeps other columns as is."""
    arrow = require("pyarrow", extra="parquet")
    kind, types = column.type, arrow.types
    is_wrapped = types.is_dictionary(kind) or types.is_run_end_encoded(kind)
    if types.is_string_view(kind.value_type if is_wrapped else kind) or (is_wrapped and _is_text(kind.value_type)):
        return column.cast(arrow.large_string())
    return column


def _halved(rows: Any, most_bytes: int) -> Iterator[Any]:
    """Bisects a batch into views of at most `most_bytes`, or of a single row."""
    middle = len(rows) // 2
    if not middle or rows.nbytes <= most_bytes:
        yield rows
    else:
        yield from _halved(rows.slice(0, middle), most_bytes)
        yield from _halved(rows.slice(middle), most_bytes)


def _texts(batches: Sequence[Any], key: str) -> Texts | None:
    """Extracts the texts of a key without Python strings; returns None if a row may lack valid text."""
    arrow = require("pyarrow", extra="parquet")
    head, *fields = _places(batches[0].schema, key) or [""]
    if batches[0].schema.names.count(head) != 1:
        return None
    columns = [batch.column(head) for batch in batches]
    column = columns[0] if len(columns) == 1 else arrow.concat_arrays(columns)
    for name in fields:
        if column.null_count:
            return None
        column = column.field(name)
    is_list = arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type)
    values = column.flatten() if is_list else column
    if column.null_count or values.null_count or not _is_text(values.type):
        return None
    try:
        values.validate(full=True)
    except arrow.ArrowException:  # text that is not UTF-8
        return None
    if not is_list:
        return Texts(texts=_in_place(values))
    offsets = column.offsets.to_numpy().astype(np.int64)
    return Texts(texts=_in_place(values), document_ends=offsets[1:] - offsets[0])


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", extra="parquet").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _in_place(array: Any) -> Utf8Texts:
    """Returns the strings of an array without nulls: a view of the array's bytes, and a copy of the array's offsets."""
    _, offset_bytes, content_bytes = array.buffers()
    if not len(array):  # an empty array may lack offsets
        return Utf8Texts(content=np.empty(0, dtype=np.uint8), offsets=np.zeros(1, dtype=np.int64))
    dtype = np.int32 if str(array.type) == "string" else np.int64
    offsets = np.frombuffer(offset_bytes, dtype=dtype)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(content_bytes or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Utf8Texts(content=content, offsets=offsets.astype(np.int64) - offsets[0])


def _rows(batch: Any) -> Sequence[Any]:
    """Returns the rows of a record batch as Python objects; an unreadable row is an `UnusableLineError`."""
    try:
        rows: list[Any] = batch.to_pylist()
    except (ValueError, OverflowError):  # a value without a Python equivalent, usually invalid UTF-8
        return [_row(batch, at) for at in range(len(batch))]
    return rows


def _row(batch: Any, at: int) -> Any:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return UnusableLineError(not_utf8(error))
    except (ValueError, OverflowError) as error:
        return UnusableLineError(f"unreadable value: {error}")
