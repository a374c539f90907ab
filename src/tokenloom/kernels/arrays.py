"""Kernels over plain arrays: checksums, rows of an index, digests of samples, insertion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]


def crc32(data: bytes | memoryview | NDArray[Any], before: int = 0) -> int:
    """Returns what `zlib.crc32` does, several times faster where the CPU multiplies without carries.

    Args:
        data: contiguous.
        before: the CRC-32 of what came before it.
    """
    return _native.crc32(np.frombuffer(data, dtype=np.uint8), before)


def insert_items(items: NDArray[Any], places: Int64s, values: NDArray[Any]) -> NDArray[Any]:
    """Returns items with a value before that of each place: `np.insert`, without a mask of all items.

    Args:
        items: any dtype, contiguous.
        places: int64, rising, from 0 to the number of items.
        values: a value for each place, of the same dtype.
    """
    out = np.empty(len(items) + len(values), dtype=items.dtype)
    bytes_of = [np.ascontiguousarray(array).view(np.uint8) for array in (items, values)]
    _native.insert_items(bytes_of[0], items.itemsize, np.ascontiguousarray(places), bytes_of[1], out.view(np.uint8))
    return out


def digest_tokens(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Returns a digest of each row of tokens, uint64[num_samples, 2], never 0 in both halves as far as anyone knows.

    Tokens count by their values, whatever dtype holds them; those of uint64 modulo 2**64.

    Args:
        tokens: integers[num_samples, length]; int64 and int32 are read as they are, others are copied.
    """
    if tokens.dtype not in (np.int64, np.int32):  # which a foreign byte order is not either
        tokens = tokens.astype(np.int64)
    out = np.empty((len(tokens), 2), dtype=np.uint64)
    _native.digest_rows(np.ascontiguousarray(tokens), out)
    return out
