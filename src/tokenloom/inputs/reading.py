"""A slice of an input file into blocks, whatever its format, as long as the file is the one that was planned with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from tokenloom.errors import ConfigError, InputError, MissingObjectError, ReplacedObjectError
from tokenloom.inputs import LINE_FORMATS, TEXT_FORMATS, TEXT_KEY, InputFile, InputSlice
from tokenloom.inputs.arrow_files import ArrowReader
from tokenloom.inputs.blocks import MAX_RECORD_BYTES, MAX_UNIT_BYTES, Block
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.decompression import MAX_WINDOW_BYTES
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.lines import FileReader, LineReader
from tokenloom.inputs.parquet_files import ParquetReader
from tokenloom.inputs.streams import version_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile


class SliceReader(Protocol):
    """Reads a slice from beginning to end, once, in blocks of whole records. Not safe from several threads.

    Attributes:
        block_bytes: of a block, unless a single record has more; may be changed between blocks.
    """

    block_bytes: int

    @property
    def num_bytes(self) -> int:
        """Size of the slice in the file; 0 where nobody knows (a pipe)."""

    @property
    def position(self) -> int:
        """Bytes of the slice, compressed as they may be, read so far."""

    @property
    def num_text_bytes(self) -> int:
        """Bytes of text read so far, after decompression; of tables, of the columns in memory."""

    @property
    def num_rows(self) -> int:
        """Records that the blocks so far hold, blank and bad ones included: lines, rows or files."""

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks, in order.

        Raises:
            InputError: the file is damaged, truncated, or not the one that was planned with any more.
            StorageError: reading failed.
        """

    def close(self) -> None:
        """Closes the file; harmless when repeated."""


def open_slice(
    slice_: InputSlice,
    *,
    block_bytes: int,
    keys: Sequence[str] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_window_bytes: int = MAX_WINDOW_BYTES,
    max_unit_bytes: int = MAX_UNIT_BYTES,
) -> SliceReader:
    """Returns the reader of a slice.

    Args:
        slice_: to read.
        block_bytes: of a block.
        keys: of the texts, so that only their columns are read; None for all columns.
        max_record_bytes: longer records are bad ones.
        max_window_bytes: that Zstandard and xz may take for what they look back on; more is an error.
        max_unit_bytes: of what of a table is there as a whole (a page of Parquet, a record batch of Arrow); more is an
            error.

    Raises:
        ConfigError: the format has no such keys.
        InputError: the file is not the one that was planned with, not of its format, or has no column for a key.
        StorageError: it cannot be opened.
        MissingExtraError: what reads it is not installed.
    """
    file = slice_.file
    if file.format in TEXT_FORMATS and keys is not None and tuple(keys) != (TEXT_KEY,):
        message = f"expected the key {TEXT_KEY!r} for `{file.path}`, which is text, got {list(keys)!r}"
        raise ConfigError(message)
    check_unchanged(file)
    reader: SliceReader
    if file.format in LINE_FORMATS:
        reader = LineReader(
            slice_, block_bytes=block_bytes, max_record_bytes=max_record_bytes, max_window_bytes=max_window_bytes
        )
    elif file.format == "text-files":
        reader = FileReader(
            slice_, block_bytes=block_bytes, max_record_bytes=max_record_bytes, max_window_bytes=max_window_bytes
        )
    else:
        kind = ParquetReader if file.format == "parquet" else ArrowReader
        reader = kind(
            slice_,
            block_bytes=block_bytes,
            keys=keys,
            max_record_bytes=max_record_bytes,
            max_unit_bytes=max_unit_bytes,
        )
    return _GuardedReader(reader, file)


def open_whole(file: InputFile, limits: ReadLimits, *, block_bytes: int) -> SliceReader:
    """Returns the reader of a whole file, all columns of it; see `open_slice`."""
    return open_slice(
        whole_file(file),
        block_bytes=block_bytes,
        max_record_bytes=limits.max_record_bytes,
        max_window_bytes=limits.max_window_bytes,
        max_unit_bytes=limits.memory_bytes,
    )


class _GuardedReader:
    """A reader that looks at the end whether the file is still the one that was planned with."""

    def __init__(self, reader: SliceReader, file: InputFile) -> None:
        self._reader = reader
        self._file = file

    @property
    def block_bytes(self) -> int:
        return self._reader.block_bytes

    @block_bytes.setter
    def block_bytes(self, value: int) -> None:
        self._reader.block_bytes = value

    @property
    def num_bytes(self) -> int:
        return self._reader.num_bytes

    @property
    def position(self) -> int:
        return self._reader.position

    @property
    def num_text_bytes(self) -> int:
        return self._reader.num_text_bytes

    @property
    def num_rows(self) -> int:
        return self._reader.num_rows

    def blocks(self) -> Iterator[Block]:
        try:
            yield from self._reader.blocks()
        except ReplacedObjectError as error:
            raise _changed(self._file, "the object was replaced") from error
        except InputError:
            check_unchanged(self._file)  # which may be why its data looks damaged
            raise
        check_unchanged(self._file)

    def close(self) -> None:
        self._reader.close()


def check_unchanged(file: InputFile) -> None:
    """Refuses a file that is not the one that was planned with, as far as its size and version tell.

    Raises:
        InputError: it grew, shrank, was replaced or removed.
        StorageError: it cannot be asked for.
    """
    if file.is_stream:
        return
    try:
        num_bytes, version = _now(file.path)
    except (FileNotFoundError, MissingObjectError) as error:
        raise _changed(file, "it is gone") from error
    if num_bytes > file.num_bytes:
        raise _changed(file, f"it grew from {file.num_bytes} to {num_bytes} bytes")
    if num_bytes < file.num_bytes:
        raise _changed(file, f"it shrank from {file.num_bytes} to {num_bytes} bytes")
    if version != file.version:
        raise _changed(file, "it was replaced or written to")


def _now(path: str) -> tuple[int, str]:
    if is_remote(path):
        return version_of(RemoteFile(path).version)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError:
        with storage_errors("open", path):
            raise
    return status.st_size, str(status.st_mtime_ns)


def _changed(file: InputFile, what: str) -> InputError:
    message = f"`{file.path}` changed after the job was planned: {what}"
    return InputError(message, hint="let nothing write to the input while it is read, and plan the job anew")
