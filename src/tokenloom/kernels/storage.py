"""Kernels of mapped files, single or many as one, and checks that they did not change."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.errors import ChangedFileError
from tokenloom.kernels.arrays import Int64s

NUM_FACTS = 5  # of a file: device, inode, size in bytes, mtime_ns, ctime_ns
Facts = tuple[int, int, int, int, int]


def map_file(path: str) -> tuple[NDArray[np.uint8], Facts]:
    """Returns a read-only view of a regular file, uint8[size], and its facts.

    The mapping keeps no descriptor and lives as long as any view of it. If the file is truncated, it reads as zeros,
    which a `Watch` detects.

    Raises:
        OSError: the file cannot be opened or mapped, or is not a regular one.
    """
    data, facts = _native.map_file(os.fsencode(path))
    return data, facts


def map_extents(paths: Sequence[str], extents: Int64s, *, num_bytes: int) -> tuple[NDArray[np.uint8], Int64s]:
    """Returns files as one read-only view, uint8[num_bytes], and the facts of each: int64[files, NUM_FACTS].

    Args:
        paths: paths of the files.
        extents: int64[2, files], start of each, a multiple of the page size, and its size; files of another size are
            left out.
        num_bytes: size of the view; gaps read as zeros.

    Raises:
        OSError: a file, which it names, cannot be opened or mapped.
    """
    found = np.full((len(paths), NUM_FACTS), -1, dtype=np.int64)
    encoded = [os.fsencode(path) for path in paths]
    try:
        return _native.map_extents(encoded, extents[0], extents[1], num_bytes, found), found
    except OSError as error:
        raise OSError(error.errno, error.strerror, paths[int(np.argmax(found[:, 2] < 0))]) from None


class Watch:
    """Checks after a read that the mapped files behind arrays are as they were when mapped.

    Arrays that are not mapped cost nothing. Thread-safe and after a fork; not picklable.

    Args:
        arrays: arrays that every read depends on.
        tokens: bytes of which a read touches some; of many files as one range, only those files are checked.
    """

    __slots__ = ("_arrays", "_tokens", "check", "check_tokens", "native")

    def __init__(self, arrays: Sequence[NDArray[Any]], tokens: NDArray[np.uint8] | None = None) -> None:
        self._arrays = arrays  # keeps them mapped
        self._tokens = tokens
        self.native: _native.Watch = _native.Watch([array for array in arrays if array.size], tokens)
        self.check: Callable[[], None] = self.native.check
        self.check_tokens: Callable[[int, int], None] = self.native.check_tokens


def damage_error(path: bytes, num_bytes: int) -> ChangedFileError:
    """Returns the error for a mapped file that was truncated, overwritten, or cannot be read any more."""
    name = os.fsdecode(path)
    hint = "restore the file and open it again; what was read of it in between was discarded"
    try:
        found = os.stat(name).st_size
    except OSError as error:
        return ChangedFileError(f"`{name}` cannot be read any more: {error.strerror}", hint=hint)
    if found < num_bytes:
        message = f"`{name}` was truncated while it was mapped: expected {num_bytes} bytes, found {found}"
    else:
        message = f"`{name}` was overwritten while it was mapped, or its disk fails: its {num_bytes} bytes are others"
    return ChangedFileError(message, hint=hint)
