"""Items put between others, against `np.insert`, which is their readable twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import _native
from tokenloom.kernels import insert_items


def test_values_come_before_their_places():
    items, places, values = np.array([1, 2, 3], np.uint16), np.array([0, 2, 2, 3]), np.array([7, 8, 9, 6], np.uint16)
    found = insert_items(items, places, values)
    assert (found.tolist(), found.dtype) == ([7, 1, 2, 8, 9, 3, 6], np.uint16)
    assert insert_items(items[:0], places[:0], values[:0]).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.float64])
@given(items=st.lists(st.integers(0, 200), max_size=20), places=st.lists(st.integers(0, 20), max_size=9))
def test_all_is_as_numpy_inserts(dtype: type, items: list[int], places: list[int]):
    array = np.array(items, dtype=dtype)
    rising = np.array(sorted(min(place, len(items)) for place in places), dtype=np.int64)
    values = np.arange(len(rising)).astype(dtype)
    found = insert_items(array, rising, values)
    assert found.dtype == dtype
    assert found.tolist() == np.insert(array, rising, values).tolist()
    assert insert_items(np.repeat(array, 2)[::2], rising, values).tolist() == found.tolist()


@pytest.mark.parametrize(
    ("num_bytes", "itemsize", "places", "num_value_bytes", "num_out_bytes"),
    [
        (4, 2, [3], 2, 6),
        (4, 2, [-1], 2, 6),
        (4, 2, [1, 0], 4, 8),
        (4, 2, [0], 4, 8),
        (4, 2, [0], 2, 4),
        (3, 2, [0], 2, 5),
        (4, 0, [0], 0, 4),
    ],
)
def test_arguments_that_do_not_fit_are_our_own_bug(
    num_bytes: int, itemsize: int, places: list[int], num_value_bytes: int, num_out_bytes: int
):
    arrays = [np.zeros(count, np.uint8) for count in (num_bytes, num_value_bytes, num_out_bytes)]
    with pytest.raises(ValueError, match="expected"):
        _native.insert_items(arrays[0], itemsize, np.array(places, dtype=np.int64), arrays[1], arrays[2])
