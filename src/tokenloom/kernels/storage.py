"""Kernels that map one file, or several files into one view, detect changes to mapped files, and compute checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.errors import ChangedFileError

Int64s = NDArray[np.int64]
NUM_FACTS = 5  # metadata of a file: device, inode, size in bytes, mtime_ns, ctime_ns
Facts = tuple[int, int, int, int, int]


def crc32(data: bytes | memoryview | NDArray[Any], before: int = 0) -> int:
    """Returns `zlib.crc32(data, before)` of contiguous data, several times faster through carry-less multiplication."""
    return _native.crc32(np.frombuffer(data, dtype=np.uint8), before)


def map_file(path: str) -> tuple[NDArray[np.uint8], Facts]:
    """Maps a regular file; returns a read-only view, uint8[size], and the metadata described at `NUM_FACTS`.

    The mapping keeps no file descriptor and lives as long as any view of it. If the file is truncated, the missing
    bytes read as zeros; use a `Watch` to detect this.

    Raises:
        OSError: the file cannot be opened or mapped, or is not a regular file.
    """
    data, facts = _native.map_file(os.fsencode(path))
    return data, facts


def map_extents(paths: Sequence[str], extents: Int64s, *, num_bytes: int) -> tuple[NDArray[np.uint8], Int64s]:
    """Maps files into one read-only view, uint8[num_bytes]; also returns their metadata, int64[files, NUM_FACTS].

    Args:
        paths: paths of the files.
        extents: int64[2, files]: row 0 has the starts of files in the view, multiples of the page size; row 1 has the
            expected sizes of files. A file of another size is not mapped.
        num_bytes: size of the view; gaps read as zeros.

    Raises:
        OSError: a file cannot be opened or mapped; the error contains its path.
    """
    found = np.full((len(paths), NUM_FACTS), -1, dtype=np.int64)
    encoded = [os.fsencode(path) for path in paths]
    try:
        return _native.map_extents(encoded, extents[0], extents[1], num_bytes, found), found
    except OSError as error:
        raise OSError(error.errno, error.strerror, paths[int(np.argmax(found[:, 2] < 0))]) from None


class Watch:
    """A detector of changes to mapped files; call `check` and `check_tokens` after each read.

    Ignores arrays that are not mapped. Thread-safe and fork-safe; not picklable.

    Args:
        arrays: arrays that every read depends on; `check()` checks them.
        tokens: mapped bytes of tokens; `check_tokens(offset, num_bytes)` checks the files that contain these bytes.
    """

    __slots__ = ("_arrays", "_tokens", "check", "check_tokens", "native")

    def __init__(self, arrays: Sequence[NDArray[Any]], tokens: NDArray[np.uint8] | None = None) -> None:
        self._arrays = arrays  # keeps them mapped
        self._tokens = tokens
        self.native: _native.Watch = _native.Watch([array for array in arrays if array.size], tokens)
        self.check: Callable[[], None] = self.native.check
        self.check_tokens: Callable[[int, int], None] = self.native.check_tokens


def damage_error(path: bytes, num_bytes: int) -> ChangedFileError:
    """Returns the error for a mapped file that was truncated or overwritten, or can no longer be read."""
    name = os.fsdecode(path)
    hint = "restore the file and open it again; bytes read after the change were discarded"
    try:
        found = os.stat(name).st_size
    except OSError as error:
        return ChangedFileError(f"`{name}` can no longer be read: {error.strerror}", hint=hint)
    message = f"`{name}` was overwritten while it was mapped, or its disk failed"
    if found < num_bytes:
        message = f"`{name}` was truncated while it was mapped: expected {num_bytes} bytes, found {found}"
    return ChangedFileError(message, hint=hint)
