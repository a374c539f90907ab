"""Kernels for plain arrays: checksums, token digests, insertion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]


def crc32(data: bytes | memoryview | NDArray[Any], before: int = 0) -> int:
    """Returns `zlib.crc32(data, before)` of contiguous data, several times faster through carry-less multiplication."""
    return _native.crc32(np.frombuffer(data, dtype=np.uint8), before)


def insert_items(items: NDArray[Any], places: Int64s, values: NDArray[Any]) -> NDArray[Any]:
    """Returns `np.insert(items, places, values)` for int64 `places` in ascending order, without a mask of all items."""
    out = np.empty(len(items) + len(values), dtype=items.dtype)
    bytes_of = [np.ascontiguousarray(array).view(np.uint8) for array in (items, values)]
    _native.insert_items(bytes_of[0], items.itemsize, np.ascontiguousarray(places), bytes_of[1], out.view(np.uint8))
    return out


def digest_tokens(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Returns a digest of each row of `tokens`, integers[num_samples, length] of any dtype: uint64[num_samples, 2]."""
    if tokens.dtype not in (np.int64, np.int32):  # also converts other byte orders
        tokens = tokens.astype(np.int64)
    out = np.empty((len(tokens), 2), dtype=np.uint64)
    _native.digest_rows(np.ascontiguousarray(tokens), out)
    return out
