"""Items put between those of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s


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
