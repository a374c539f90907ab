"""A slice of an input file into blocks, whatever its format, as long as the file is the one that was planned with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tokenloom.errors import InputError, MissingObjectError, ReplacedObjectError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import MAX_RECORD_BYTES, Block
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.limits import MEMORY_BYTES, WINDOW_BYTES, ReadLimits
from tokenloom.inputs.record_format import ReaderOver, ReadOptions, SliceReader
from tokenloom.inputs.streams import version_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile

_MOST_HEAD_BLOCKS = 100


def open_slice(
    slice_: InputSlice,
    *,
    block_bytes: int,
    keys: Sequence[str] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_window_bytes: int = WINDOW_BYTES,
    max_unit_bytes: int = MEMORY_BYTES,
) -> SliceReader:
    """Returns the reader of a slice.

    Args:
        slice_: slice to read.
        block_bytes, keys, max_record_bytes, max_window_bytes, max_unit_bytes: see `ReadOptions`.

    Raises:
        ConfigError: the format has no such keys.
        InputError: the file is not the one that was planned with, not of its format, or has no column for a key.
        StorageError: it cannot be opened.
        MissingExtraError: what reads it is not installed.
    """
    file = slice_.file
    found = FORMATS[file.format]
    if keys is not None:
        found.check_keys(file.path, keys)
    check_unchanged(file)
    options = ReadOptions(
        block_bytes=block_bytes,
        keys=keys,
        max_record_bytes=max_record_bytes,
        max_window_bytes=max_window_bytes,
        max_unit_bytes=max_unit_bytes,
    )
    return _GuardedReader(found.open(slice_, options), file)


def open_within(slice_: InputSlice, limits: ReadLimits, *, block_bytes: int) -> SliceReader:
    """Returns the reader of a slice, all columns of it, within some limits; see `open_slice`."""
    return open_slice(
        slice_,
        block_bytes=block_bytes,
        max_record_bytes=limits.max_record_bytes,
        max_window_bytes=limits.max_window_bytes,
        max_unit_bytes=limits.memory_bytes,
    )


class _GuardedReader(ReaderOver):
    """A reader that looks at the end whether the file is still the one that was planned with."""

    def __init__(self, reader: SliceReader, file: InputFile) -> None:
        super().__init__(reader)
        self._file = file

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


class BegunReader(ReaderOver):
    """A reader that has read its first blocks; see `SliceReader`.

    Args:
        reader: reader of a slice, from its beginning.

    Attributes:
        first: block with a whole record in it; None if there is none, or not among the first hundred.
    """

    def __init__(self, reader: SliceReader) -> None:
        super().__init__(reader)
        self._rest = reader.blocks()
        self._head: list[Block] = []
        for block in self._rest:
            self._head.append(block)
            if not block.too_long or len(self._head) == _MOST_HEAD_BLOCKS:
                break
        self.first: Block | None = self._head[-1] if self._head else None

    def blocks(self) -> Iterator[Block]:
        """Yields all blocks, those that were looked at first."""
        yield from self._head
        self._head = []
        yield from self._rest

    def close(self) -> None:
        """Closes the file."""
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
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError) as error:
        raise _changed(file, "it is gone") from error
    if num_bytes > file.num_bytes:
        raise _changed(file, f"it grew from {file.num_bytes} to {num_bytes} bytes")
    if num_bytes < file.num_bytes:
        raise _changed(file, f"it shrank from {file.num_bytes} to {num_bytes} bytes")
    if version != file.version:
        raise _changed(file, "it was replaced or written to")


def size_and_version(path: str) -> tuple[int, str]:
    """Returns the size of a file, and what changes when it does, as an `InputFile` keeps them.

    Raises:
        FileNotFoundError, MissingObjectError: it is gone.
        StorageError: it cannot be asked for.
    """
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
