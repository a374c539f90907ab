"""Kernels that find damage: checksums, and the rows of an index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s


def crc32(data: bytes | memoryview | NDArray[Any], before: int = 0) -> int:
    """Returns what `zlib.crc32` does, several times faster where the CPU multiplies without carries.

    Args:
        data: contiguous.
        before: the CRC-32 of what came before it.
    """
    return _native.crc32(np.frombuffer(data, dtype=np.uint8), before)


def check_rows(lengths: NDArray[np.int32], pointers: Int64s, *, start: int, itemsize: int) -> tuple[int, int]:
    """Returns the first row that is not that of a sequence behind the one before it, and where it should begin.

    If there is none: how many rows there are, and where the last one ends. One pass.

    Args:
        lengths: int32[num_sequences], tokens per sequence; need not be aligned.
        pointers: int64[num_sequences], where each begins, in bytes; likewise.
        start: where the first should begin.
        itemsize: bytes per token.
    """
    return _native.check_rows(lengths, pointers, start, itemsize)


def first_fall(boundaries: Int64s) -> int:
    """Returns the first of int64[count] numbers that is below the one before it, or how many there are."""
    return _native.first_fall(boundaries)
