"""Arrow: files and streams, and datasets that Hugging Face `datasets` saved, as blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.formats.saved_datasets import saved_files
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.table_sources import columns_of
from tokenloom.inputs.tables import TableReader
from tokenloom.optional import require

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_OF_STREAM = b"\0\0\0\0"


class ArrowReader(TableReader):
    """Reads an Arrow file or stream. Memory: a record batch, as large as its writer made it."""

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        self._num_done = 0  # record batches of a file, bytes of a stream
        self._num_batches = 0
        is_stream = slice_.file.is_stream
        self._is_file = not is_stream and self._source.read_at(len(FILE_MAGIC), 0) == FILE_MAGIC
        if self._is_file:
            self._open_file(keys)
        else:
            if not is_stream:
                _check_end(self._source, slice_.file)
            self._open_stream(keys)
        return 0

    def _open_file(self, keys: Sequence[str] | None) -> None:
        ipc = require("pyarrow.ipc", extra="parquet")
        self._table = ipc.open_file(self._source)
        if keys is not None:
            options = self._options(ipc, columns_of(self._table.schema, keys, self._path))
            self._table = ipc.open_file(self._source, options=options)
        self._num_batches = self._table.num_record_batches

    def _open_stream(self, keys: Sequence[str] | None) -> None:
        ipc = require("pyarrow.ipc", extra="parquet")
        if not self._slice.file.is_stream:
            self._source.seek(0)
        self._table = ipc.open_stream(self._source)
        if keys is not None:
            names = columns_of(self._table.schema, keys, self._path)
            if not self._slice.file.is_stream:  # cannot begin anew
                self._source.seek(0)
                self._table = ipc.open_stream(self._source, options=self._options(ipc, names))

    def _options(self, ipc: Any, names: Sequence[str]) -> Any:
        """Returns the options that read the columns of these names or paths only."""
        wanted = {value for name in names for value in (name, name.partition(".")[0])}
        schema = self._table.schema
        return ipc.IpcReadOptions(included_fields=[at for at, name in enumerate(schema.names) if name in wanted])

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
        while True:
            batch = next(iter(self._table), None)
            if batch is None:
                break
            if not self._slice.file.is_stream:
                self._num_done = self._source.tell()
            yield _validated(batch, self._arrow)
        self._num_done = self.num_bytes


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


class ArrowFormat(RecordFormat):
    """Arrow, file or stream; a dataset that Hugging Face `datasets` saved lists its files."""

    title = "Arrow"
    suffixes: tuple[str, ...] = (".arrow", ".arrows", ".feather", ".ipc")
    magics: tuple[bytes, ...] = (FILE_MAGIC, STREAM_MAGIC)
    compresses_inside = True

    def saved_files(self, folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str] | None:
        """Returns the files of a saved dataset; see `RecordFormat`."""
        return saved_files(folder, names, read)

    def open(self, slice_: InputSlice, options: ReadOptions) -> ArrowReader:
        """Returns the reader of a file; see `RecordFormat`."""
        return ArrowReader(slice_, options)


ARROW = ArrowFormat()
