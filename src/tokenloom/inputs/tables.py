"""A table of any format as blocks of rows: what Parquet, Arrow and CSV have in common."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.blocks import HEAD_BYTES, MAX_RECORD_BYTES
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.parsing import ParsedBlock, Texts
from tokenloom.inputs.record_format import ReadOptions
from tokenloom.inputs.records import NumberedRecord, UnusableLineError, data_of, not_utf8
from tokenloom.inputs.streams import object_version
from tokenloom.inputs.utf8_texts import Utf8Texts, joined_texts
from tokenloom.optional import require
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import RemoteStream

_MEASURED_ROWS = 8 << 10
"""Rows measured at once: rows that share a value in a dictionary get one each."""

Column = tuple[Sequence[str], NDArray[np.int64] | None]
"""Texts, and the number of texts before each document's end where a document may have several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """Some consecutive rows of a table; a `Block`.

    Attributes:
        path: path of the file.
        first_record: number of the first row in the file, from 1.
        batches: `pyarrow.RecordBatch`es of the columns that were asked for, at least one.
        max_record_bytes: rows with more bytes of text are bad rows.
        too_long: the block is one of these.
        bad_rows: rows that cannot be read, by number; `batches` hold something else in their place.
    """

    unit: ClassVar[str] = "row"

    path: str
    first_record: int
    batches: tuple[Any, ...]
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False
    bad_rows: Mapping[int, NumberedRecord] = field(default_factory=dict)

    @property
    def num_text_bytes(self) -> int:
        """Size of the columns in memory, somewhat more than their text."""
        return sum(batch.nbytes for batch in self.batches)

    def beginning(self) -> bytes:
        """Returns the first bytes of a row as JSON."""
        return data_of(next(self.records(None)))[:HEAD_BYTES]

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the columns, if they hold nothing but texts."""
        if self.too_long or self.bad_rows:
            return None
        columns = _texts_of_columns(self.batches, keys, max_record_bytes=self.max_record_bytes)
        if columns is None:
            return None
        return ParsedBlock(
            columns=tuple(Texts(texts=texts, document_ends=ends) for texts, ends in columns),
            num_documents=sum(map(len, self.batches)),
        )

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the rows."""
        rows = _rows_of(self.batches, first_record=self.first_record)
        return (self.bad_rows.get(row.number, row) for row in rows)

    def halves(self) -> tuple[TableBlock, TableBlock] | None:
        """Returns the first and the last rows."""
        num_rows = sum(map(len, self.batches))
        if num_rows < 2:
            return None
        middle = num_rows // 2
        first, last = [], []
        for batch in self.batches:
            first.append(batch.slice(0, max(0, middle)))
            last.append(batch.slice(min(len(batch), max(0, middle))))
            middle -= len(batch)
        kept = replace(self, batches=tuple(batch for batch in first if len(batch)))
        rest = tuple(batch for batch in last if len(batch))
        return kept, replace(self, batches=rest, first_record=self.first_record + num_rows // 2)


class TableReader(ABC):
    """Reads a slice of a table in blocks of rows; a `SliceReader`. Not safe from several threads.

    Args:
        slice_: slice of the table.
        options: options of reading; a unit of a table is a record batch, as decoded.

    Raises:
        StorageError: the file cannot be opened.
        InputError: it is not of its format, or has no column for a key.
        MissingExtraError: `pyarrow` is not installed.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        self.block_bytes: int = options.block_bytes
        self.num_text_bytes: int = 0
        self.num_rows: int = 0
        self._num_read_rows = 0
        self._bad_rows: dict[int, NumberedRecord] = {}
        self._arrow = require("pyarrow", extra="parquet")
        self._path = slice_.file.path
        self._slice = slice_
        self._max_record_bytes = options.max_record_bytes
        self._max_unit_bytes = options.max_unit_bytes
        self._source = self._open_source(slice_, options)
        try:
            with self._worded():
                self._first_record = 1 + self._open(slice_, options.keys)
        except BaseException:
            self._source.close()
            raise

    @property
    def num_bytes(self) -> int:
        """Size of the slice; of a file that is never cut, its size, 0 where nobody knows (a pipe)."""
        return self._slice.file.num_bytes

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of the slice read so far."""

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        """Returns what `pyarrow` reads the slice from."""
        return open_table_source(slice_.file)

    @abstractmethod
    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        """Opens the table; returns the number of rows before the slice."""

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yields record batches; adds to `_bad_rows` before it yields what stands for a bad row."""

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def blocks(self) -> Iterator[TableBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the data is damaged.
            StorageError: reading failed.
        """
        batches = self._batches()
        pending: list[Any] = []
        num_pending_bytes = 0
        while True:
            with self._worded():
                batch = next(batches, None)
            if batch is None:
                break
            self._check_size(batch)
            self._num_read_rows += len(batch)
            for piece, num_bytes in self._pieces(batch):
                is_too_long = len(piece) == 1 and num_bytes > self._max_record_bytes
                if pending and (is_too_long or num_pending_bytes + num_bytes > self.block_bytes):
                    yield self._block(pending)
                    pending, num_pending_bytes = [], 0
                if is_too_long:
                    yield self._block([piece], too_long=True)
                    continue
                pending.append(piece)
                num_pending_bytes += num_bytes
            del batch
        if pending:
            yield self._block(pending)

    def _check_size(self, batch: Any) -> None:
        """Refuses a decoded batch that takes too much memory."""
        if batch.nbytes > self._max_unit_bytes:
            row = self._first_record + self._num_read_rows
            message = f"`{self._path}` row {row}: a batch takes {batch.nbytes} bytes, more than {self._max_unit_bytes}"
            raise InputError(message, hint="write smaller batches or row groups, or allow more with `memory_bytes`")

    def _pieces(self, batch: Any) -> Iterator[tuple[Any, int]]:
        """Yields views of the rows of a batch, of a block at most or a single row, each with its bytes as text."""
        for first in range(0, len(batch), _MEASURED_ROWS):
            with self._worded():
                rows = _with_plain_text(batch.slice(first, _MEASURED_ROWS))
                ends = np.cumsum(_row_bytes(rows))
            start = before = 0
            while start < len(rows):
                most = before + min(self.block_bytes, self._max_record_bytes)
                stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
                yield rows.slice(start, stop - start), int(ends[stop - 1]) - before
                start, before = stop, int(ends[stop - 1])

    def _block(self, batches: list[Any], *, too_long: bool = False) -> TableBlock:
        stop = self._first_record + self.num_rows + sum(map(len, batches))
        block = TableBlock(
            path=self._path,
            first_record=self._first_record + self.num_rows,
            batches=tuple(batches),
            max_record_bytes=self._max_record_bytes,
            too_long=too_long,
            bad_rows={number: self._bad_rows.pop(number) for number in list(self._bad_rows) if number < stop},
        )
        self.num_rows += sum(map(len, batches))
        self.num_text_bytes += block.num_text_bytes
        return block

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Turns what `pyarrow` raises into our errors."""
        try:
            yield
        except (StorageError, InputError):
            raise
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                message = f"cannot read `{self._path}`: {error.strerror or error}"
                raise StorageError(message) from error
            kind = FORMATS[self._slice.file.format].title
            if not hasattr(self, "_first_record"):
                raise not_a_table(self._slice.file, error) from error
            row = self._first_record + self._num_read_rows
            message = f"`{self._path}` row {row} or later: the {kind} data is damaged: {error}"
            raise InputError(message) from error


def open_table_source(file: InputFile) -> Any:
    """Returns a file as `pyarrow` reads it: a `pyarrow.NativeFile`.

    Raises:
        StorageError: it cannot be opened.
        MissingExtraError: `pyarrow` is not installed.
    """
    arrow = require("pyarrow", extra="parquet")
    if is_remote(file.path):
        remote = RemoteFile(file.path, version=object_version(file))
        return arrow.PythonFile(RemoteStream(remote), mode="r")
    with storage_errors("open", file.path):
        if file.path == STDIN:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(0, closefd=False)), mode="r")
        if file.is_stream:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(file.path)), mode="r")
        return arrow.OSFile(file.path)


def not_a_table(file: InputFile, error: Exception) -> InputError:
    """Returns the error for a file that is not what its name, or the user, says."""
    title = FORMATS[file.format].title
    article = "an" if title.startswith(("A", "E", "I", "O", "U")) else "a"
    message = f"`{file.path}` is not {article} {title} file: {error}"
    return InputError(message, hint="or it is truncated, or still being written")


def columns_of(schema: Any, keys: Sequence[str], path: str) -> list[str]:
    """Returns the columns that hold the values under some keys, as `pyarrow` names columns inside structs.

    Raises:
        InputError: a key has no column.
    """
    for key in keys:
        if not _has(schema, key):
            found = ", ".join(repr(name) for name in schema.names[:8]) or "none"
            message = f"`{path}`: no column {key!r}; found {found}"
            raise InputError(message, hint="name one of the columns as the key")
    return list(dict.fromkeys(keys))


def _has(schema: Any, key: str) -> bool:
    """Whether there is a column under a key, or a field of structs, by the rule of `value_at`."""
    names = set(schema.names)
    while key not in names:
        head, dot, key = key.partition(".")
        if not dot or head not in names:
            return False
        kind = schema.field(head)
        kind = getattr(kind, "type", kind)
        if not str(kind).startswith("struct<"):
            return False
        schema = kind
        names = {kind.field(number).name for number in range(kind.num_fields)}
    return True


def _with_plain_text(batch: Any) -> Any:
    """Returns a batch in which columns of text in dictionaries, runs or views are strings."""
    arrow = require("pyarrow", extra="parquet")
    columns = [
        column.cast(arrow.large_string()) if _is_wrapped_text(column.type, arrow.types) else column
        for column in batch.columns
    ]
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_wrapped_text(kind: Any, types: Any) -> bool:
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        kind = kind.value_type
        return _is_text(kind, types) or bool(types.is_string_view(kind))
    return bool(types.is_string_view(kind))


def _row_bytes(batch: Any) -> NDArray[np.int64]:
    """Returns the bytes of each row: int64[num_rows]; exact for texts, the mean of the batch for all else."""
    arrow = require("pyarrow", extra="parquet")
    total = np.zeros(len(batch), dtype=np.int64)
    for column in batch.columns:
        if _is_text(column.type, arrow.types):
            lengths = require("pyarrow.compute", extra="parquet").binary_length(column)
            total += lengths.fill_null(0).to_numpy(zero_copy_only=False)
        else:
            total += 1 + column.nbytes // max(1, len(batch))
    return total


def _texts_of_columns(batches: Sequence[Any], keys: Sequence[str], *, max_record_bytes: int) -> list[Column] | None:
    """Returns the texts under each key; None if any row may hold none, or may be too long."""
    if any(batch.nbytes > max_record_bytes for batch in batches):
        return None
    columns: list[Column] = []
    for key in keys:
        parts = [_texts(batch, key) for batch in batches]
        if not all(parts):
            return None
        columns.append(_joined([part for part in parts if part is not None]))
    return columns


def _texts(batch: Any, key: str) -> Column | None:
    arrow = require("pyarrow", extra="parquet")
    column = _column(batch, key, arrow.types)
    if column is None or column.null_count:
        return None
    if _is_text(column.type, arrow.types):
        texts = _strings(column, arrow)
        return None if texts is None else (texts, None)
    if arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type):
        values = column.flatten()
        if values.null_count or not _is_text(values.type, arrow.types):
            return None
        texts = _strings(values, arrow)
        offsets = column.offsets.to_numpy().astype(np.int64)
        return None if texts is None else (texts, offsets[1:] - offsets[0])
    return None


def _column(batch: Any, key: str, types: Any) -> Any | None:
    """Returns the array under a key, by the rule of `value_at`; None if there is none, or some objects are null."""
    names = batch.schema.names
    if names.count(key) == 1:
        return batch.column(key)
    head, dot, rest = key.partition(".")
    if key in names or not dot or names.count(head) != 1:
        return None
    column = batch.column(head)
    while types.is_struct(column.type) and not column.null_count:
        fields = [column.type.field(number).name for number in range(column.type.num_fields)]
        if rest in fields:
            return column.field(rest)
        head, dot, rest = rest.partition(".")
        if not dot or head not in fields:
            return None
        column = column.field(head)
    return None


def _is_text(kind: Any, types: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _strings(array: Any, arrow: Any) -> Sequence[str] | None:
    """Returns the values of an array of text without nulls; None if one is not UTF-8."""
    try:
        array.validate(full=True)
    except arrow.ArrowException:
        return None
    return _in_place(array, np.dtype(np.int32 if arrow.types.is_string(array.type) else np.int64))


def _in_place(array: Any, offset_dtype: np.dtype[Any]) -> Utf8Texts:
    """Returns the values of a valid array of strings as views of its bytes; the offsets may be copied."""
    _, offset_bytes, content_bytes = array.buffers()
    if not len(array):  # which need not have offsets
        return Utf8Texts(content=np.empty(0, dtype=np.uint8), offsets=np.zeros(1, dtype=np.int64))
    offsets = np.frombuffer(offset_bytes, dtype=offset_dtype)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(content_bytes or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Utf8Texts(content=content, offsets=offsets.astype(np.int64) - offsets[0])


def _joined(parts: list[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    texts = joined_texts([part for part, _ in parts])
    if all(ends is None for _, ends in parts):
        return texts, None
    assert all(ends is not None for _, ends in parts)  # the batches of a file have one schema
    starts = np.cumsum([0, *(len(part) for part, _ in parts[:-1])])
    return texts, np.concatenate([ends + start for (_, ends), start in zip(parts, starts, strict=True)])


def _rows_of(batches: Sequence[Any], *, first_record: int) -> Iterator[NumberedRecord]:
    """Yields the rows of record batches, numbered from the first record on."""
    number = first_record
    for batch in batches:
        try:
            rows: list[Any] = batch.to_pylist()
        except (ValueError, OverflowError):  # a value that Python cannot hold; most often text that is not UTF-8
            rows = [_row(batch, at) for at in range(len(batch))]
        for row in rows:
            yield NumberedRecord(number, row)
            number += 1


def _row(batch: Any, at: int) -> Any:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return UnusableLineError(not_utf8(error))
    except (ValueError, OverflowError) as error:
        return UnusableLineError(f"a value that cannot be read: {error}")
