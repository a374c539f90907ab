"""Reads Arrow files and streams, and datasets saved by Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenloom.errors import ConfigError, InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.tables import TableReader, columns_of
from tokenloom.optional import require
from tokenloom.storage.json_files import parse_json

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_OF_STREAM = b"\0\0\0\0"
_STATE = "state.json"
_SPLITS = "dataset_dict.json"


class ArrowReader(TableReader):
    """A reader of an Arrow file or stream. Memory: one record batch; the writer of the file chose its size."""

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        ipc = require("pyarrow.ipc", extra="parquet")
        is_pipe = slice_.file.is_stream
        self._num_done = 0  # number of record batches read from a file, or bytes read from a stream
        self._is_file = not is_pipe and self._source.read_at(len(FILE_MAGIC), 0) == FILE_MAGIC
        if not is_pipe and not self._is_file:
            if self._source.read_at(4, max(0, slice_.file.num_bytes - 4)) != _END_OF_STREAM:
                message = f"`{self._path}`: the Arrow stream has no end mark"
                raise InputError(message, hint="the file is truncated or still being written")
            self._source.seek(0)
        open_table = ipc.open_file if self._is_file else ipc.open_stream
        self._table = open_table(self._source)
        names = None if keys is None else columns_of(self._table.schema, keys, self._path)
        if names is not None and not is_pipe:  # a pipe cannot be reopened
            wanted = {value for name in names for value in (name, name.partition(".")[0])}
            fields = [at for at, name in enumerate(self._table.schema.names) if name in wanted]
            self._source.seek(0)
            self._table = open_table(self._source, options=ipc.IpcReadOptions(included_fields=fields))
        return 0

    @property
    def position(self) -> int:
        if self._is_file:
            return self.num_bytes * self._num_done // max(int(self._table.num_record_batches), 1)
        return min(self._num_done, self.num_bytes)

    def _batches(self) -> Iterator[Any]:
        count = self._table.num_record_batches if self._is_file else 0
        for batch in map(self._table.get_batch, range(count)) if self._is_file else self._table:
            if self._is_file:
                self._num_done += 1
            elif not self._slice.file.is_stream:
                self._num_done = self._source.tell()
            for column in batch.columns:  # checks that all offsets are within the buffer
                try:
                    column.validate(full=True)
                except self._arrow.ArrowInvalid as error:
                    if "UTF8" not in str(error):  # invalid UTF-8 only makes a record bad
                        raise
            yield batch
        self._num_done = count or self.num_bytes


def _json(path: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    try:
        return dict(parse_json(read(path)))
    except (TypeError, ValueError) as error:
        raise InputError(f"`{path}` is not a JSON object: {error}") from error


class ArrowFormat(RecordFormat):
    """The Arrow format, as file or stream, including folders saved by Hugging Face `datasets`."""

    title = "Arrow"
    suffixes: tuple[str, ...] = (".arrow", ".arrows", ".feather", ".ipc")
    magics: tuple[bytes, ...] = (FILE_MAGIC, STREAM_MAGIC)
    compresses_inside = True

    def saved_files(self, folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str] | None:
        """Returns the file names of a dataset saved by `datasets`, in the dataset's order; see `RecordFormat`."""
        if _SPLITS in names:
            splits = _json(f"{folder}/{_SPLITS}", read).get("splits") or []
            hint = "pass the folder of one split: " + ", ".join(f"`{folder}/{each}`" for each in splits)
            message = f"the saved dataset `{folder}` has several splits: {', '.join(splits) or 'none'}"
            raise ConfigError(message, hint=hint)
        if _STATE not in names:
            return None
        state = _json(f"{folder}/{_STATE}", read)
        if "_data_files" not in state:
            return None  # a file of another program
        if state.get("_indices_data_files"):
            hint = "save the dataset again: `dataset.flatten_indices().save_to_disk(...)`"
            raise InputError(f"the saved dataset `{folder}` has an indices mapping, which is not supported", hint=hint)
        files, found = [each["filename"] for each in state["_data_files"]], set(names)
        if missing := [name for name in files if name not in found]:
            message = f"the saved dataset `{folder}` lacks {len(missing)} of its {len(files)} files, such as "
            raise InputError(f"{message}{missing[0]!r}")
        return files

    def open(self, slice_: InputSlice, options: ReadOptions) -> ArrowReader:
        return ArrowReader(slice_, options)


ARROW = ArrowFormat()
