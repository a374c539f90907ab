"""Kernels of files: mapped whole, or many as one."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s


def map_file(path: str) -> NDArray[np.uint8]:
    """Returns a read-only view of a whole file, uint8[size], without keeping the file open; one open and one stat.

    The mapping lives as long as any view of it.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    return _native.map_file(os.fsencode(path))


def map_extents(paths: Sequence[str], extents: Int64s, *, num_bytes: int) -> tuple[NDArray[np.uint8], Int64s]:
    """Returns files as one read-only view, uint8[num_bytes], and (size, ns of last change) of each: int64[files, 2].

    Args:
        paths: of the files.
        extents: int64[2, files], where each begins, a multiple of the page size, and its size; another one is left out.
        num_bytes: of the view; what no file covers reads as zeros.

    Raises:
        OSError: the file it names cannot be opened or mapped.
    """
    found = np.full((2, len(paths)), -1, dtype=np.int64)
    encoded = [os.fsencode(path) for path in paths]
    try:
        return _native.map_extents(encoded, extents[0], extents[1], num_bytes, found[0], found[1]), found.T
    except OSError as error:
        raise OSError(error.errno, error.strerror, paths[int(np.argmax(found[0] < 0))]) from None
