"""Parquet and Arrow files as blocks of rows: the only module that opens files with `pyarrow`."""

from __future__ import annotations

import io
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import InputError, StorageError
from tokenloom.optional import require
from tokenloom.preprocess.inputs import STDIN, InputFile, InputSlice
from tokenloom.preprocess.inputs.blocks import MAX_RECORD_BYTES, TableBlock
from tokenloom.preprocess.inputs.streams import object_version
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import RemoteRandomAccess

_READ_BYTES = 1 << 20
"""Of a column chunk, read at once: without, `pyarrow` reads whole chunks, which may be as large as the file."""
_REMOTE_READ_BYTES = 4 << 20
_BATCH_BYTES = 256 << 10
"""Decoded at once, on average over the rows; more where long rows follow each other among short ones. A quarter of it
takes as much memory in all, because a page is there as a whole, and a fifth more time."""
_MOST_BATCH_ROWS = 4096
_ARROW_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\0\0\0\0"


class TableReader(ABC):
    """Reads a slice of a table in blocks of rows; a `SliceReader`. Not safe from several threads.

    Args:
        slice_: of the table.
        block_bytes: of a block, unless a single row has more; may be changed between blocks.
        keys: of the texts; only the columns that hold these are read. None for all columns.
        max_record_bytes: see `TableBlock`.

    Raises:
        StorageError: the file cannot be opened.
        InputError: it is not of its format, or has no column for a key.
        MissingExtraError: `pyarrow` is not installed.
    """

    def __init__(
        self,
        slice_: InputSlice,
        *,
        block_bytes: int,
        keys: Sequence[str] | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.block_bytes = block_bytes
        self.num_text_bytes = 0
        self.num_rows = 0
        self._num_read_rows = 0
        self._arrow = require("pyarrow", extra="parquet")
        self._path = slice_.file.path
        self._slice = slice_
        self._max_record_bytes = max_record_bytes
        self._source = open_table_source(slice_.file)
        try:
            with self._worded():
                self._first_record = 1 + self._open(slice_, keys)
        except BaseException:
            self._source.close()
            raise

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of the slice."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of the slice read so far."""

    @abstractmethod
    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        """Opens the table; returns the number of rows before the slice."""

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yields record batches."""

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
        """Yields views of the rows of a batch, of about a block each."""
        start = 0
        while start < len(batch):
            rest = batch.slice(start)
            num_rows = max(1, len(rest) * self.block_bytes // max(rest.nbytes, 1))
            yield rest.slice(0, num_rows)
            start += num_rows

    def _block(self, batches: list[Any]) -> TableBlock:
        block = TableBlock(
            path=self._path,
            first_record=self._first_record + self.num_rows,
            batches=tuple(batches),
            max_record_bytes=self._max_record_bytes,
        )
        self.num_rows += sum(map(len, batches))
        self.num_text_bytes += block.num_text_bytes
        return block

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Turns what `pyarrow` raises into our errors."""
        try:
            yield
        except StorageError:
            raise
        except (self._arrow.ArrowException, OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                message = f"cannot read `{self._path}`: {error.strerror or error}"
                raise StorageError(message) from error
            kind = self._slice.file.format.capitalize()
            if not hasattr(self, "_first_record"):
                raise not_a_table(self._slice.file, error) from error
            row = self._first_record + self._num_read_rows
            message = f"`{self._path}` row {row} or later: the {kind} data is damaged: {error}"
            raise InputError(message) from error


class ParquetReader(TableReader):
    """Reads row groups of a Parquet file.

    Memory: some pages of each column, as large as their writer made them, and two blocks; never a whole row group
    (measured, 710 MB of text in a single one: 180 MB, 72 MB of them the libraries).
    """

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        parquet = require("pyarrow.parquet", extra="parquet")
        self._file = parquet.ParquetFile(
            self._source,
            pre_buffer=False,
            buffer_size=_REMOTE_READ_BYTES if is_remote(self._path) else _READ_BYTES,
            page_checksum_verification=True,
        )
        self._names = None if keys is None else columns_of(self._file.schema_arrow, keys, self._path)
        metadata = self._file.metadata
        groups = [metadata.row_group(number) for number in range(slice_.start, slice_.stop)]
        self._num_bytes: int = sum(column.total_compressed_size for group in groups for column in _columns(group))
        self._num_slice_rows: int = sum(group.num_rows for group in groups)
        num_bytes = sum(
            column.total_uncompressed_size
            for group in groups
            for column in _columns(group)
            if self._is_read(column.path_in_schema)
        )
        self._batch_rows = max(1, min(_MOST_BATCH_ROWS, self._num_slice_rows * _BATCH_BYTES // max(num_bytes, 1)))
        return sum(int(metadata.row_group(number).num_rows) for number in range(slice_.start))

    @property
    def num_bytes(self) -> int:
        """Size of the row groups, all columns counted."""
        return self._num_bytes

    @property
    def position(self) -> int:
        """Bytes of the row groups read so far, in proportion to the rows."""
        return self.num_bytes * self.num_rows // max(self._num_slice_rows, 1)

    def _batches(self) -> Iterator[Any]:
        for number in range(self._slice.start, self._slice.stop):
            yield from self._file.iter_batches(
                batch_size=self._batch_rows, row_groups=[number], columns=self._names, use_threads=False
            )

    def _is_read(self, path: str) -> bool:
        """Whether a column that `pyarrow` names so is one of those that are read, or lies inside one."""
        return self._names is None or any(path == name or path.startswith(f"{name}.") for name in self._names)


class ArrowReader(TableReader):
    """Reads an Arrow file or stream. Memory: a record batch, as large as its writer made it."""

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        ipc = require("pyarrow.ipc", extra="parquet")
        file = slice_.file
        self._num_done = 0  # record batches of a file, bytes of a stream
        self._num_batches = 0
        self._is_file = not file.is_stream and self._source.read_at(len(_ARROW_FILE_MAGIC), 0) == _ARROW_FILE_MAGIC
        if self._is_file:
            self._table = ipc.open_file(self._source)
            if keys is not None:
                options = self._options(ipc, columns_of(self._table.schema, keys, self._path))
                self._table = ipc.open_file(self._source, options=options)
            self._num_batches = self._table.num_record_batches
        else:
            if not file.is_stream:
                _check_end(self._source, file)
                self._source.seek(0)
            self._table = ipc.open_stream(self._source)
            if keys is not None:
                names = columns_of(self._table.schema, keys, self._path)
                if not file.is_stream:  # cannot begin anew
                    self._source.seek(0)
                    self._table = ipc.open_stream(self._source, options=self._options(ipc, names))
        return 0

    def _options(self, ipc: Any, names: Sequence[str]) -> Any:
        """Returns the options that read the columns of these names or paths only."""
        wanted = {value for name in names for value in (name, name.partition(".")[0])}
        schema = self._table.schema
        return ipc.IpcReadOptions(included_fields=[at for at, name in enumerate(schema.names) if name in wanted])

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._slice.file.num_bytes

    @property
    def position(self) -> int:
        """Bytes of the file read so far; of a file (not a stream), in proportion to its record batches."""
        if self._is_file:
            return self.num_bytes * self._num_done // max(self._num_batches, 1)
        return min(self._num_done, self.num_bytes)

    def _batches(self) -> Iterator[Any]:
        if self._is_file:
            for number in range(self._num_batches):
                yield _validated(self._table.get_batch(number), self._arrow)
                self._num_done = number + 1
            return
        for batch in map(_validated, self._table, itertools.repeat(self._arrow)):
            if not self._slice.file.is_stream:
                self._num_done = self._source.tell()
            yield batch
        self._num_done = self.num_bytes


def open_table_source(file: InputFile) -> Any:
    """Returns a file as `pyarrow` reads it: a `pyarrow.NativeFile`.

    Raises:
        StorageError: it cannot be opened.
        MissingExtraError: `pyarrow` is not installed.
    """
    arrow = require("pyarrow", extra="parquet")
    if is_remote(file.path):
        remote = RemoteFile(file.path, version=object_version(file))
        return arrow.PythonFile(RemoteRandomAccess(remote), mode="r")
    with storage_errors("open", file.path):
        if file.path == STDIN:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(0, closefd=False)), mode="r")
        if file.is_stream:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(file.path)), mode="r")
        return arrow.OSFile(file.path)


def row_group_bytes(file: InputFile) -> list[int]:
    """Returns the sizes of the row groups of a Parquet file as they are decoded, which its footer tells.

    Raises:
        StorageError: it cannot be read.
        InputError: it is not a Parquet file.
        MissingExtraError: `pyarrow` is not installed.
    """
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    with open_table_source(file) as source:
        try:
            metadata = parquet.read_metadata(source)
        except StorageError:
            raise
        except (arrow.ArrowException, OSError) as error:
            raise not_a_table(file, error) from error
        return [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]


def not_a_table(file: InputFile, error: Exception) -> InputError:
    """Returns the error for a file that is not what its name, or the user, says."""
    kind = "a Parquet" if file.format == "parquet" else "an Arrow"
    message = f"`{file.path}` is not {kind} file: {error}"
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


def _columns(group: Any) -> list[Any]:
    return [group.column(number) for number in range(group.num_columns)]


def _validated(batch: Any, arrow: Any) -> Any:
    """Returns a record batch whose offsets lie within its bytes; text that is not UTF-8 is its reader's matter."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except arrow.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
    return batch


def _check_end(source: Any, file: InputFile) -> None:
    """Refuses a stream on disk that does not end with its end mark: whoever wrote it did not finish."""
    if source.read_at(4, max(0, file.num_bytes - 4)) != _END_OF_STREAM:
        message = f"`{file.path}`: the Arrow stream has no end mark"
        raise InputError(message, hint="the file is truncated or still being written")
