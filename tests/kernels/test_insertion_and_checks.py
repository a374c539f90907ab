"""Insertion of items, checksums and rows, compared with NumPy, zlib and readable references."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import index_rows

from tokenloom._native import check_rows, first_fall
from tokenloom.kernels.arrays import crc32, insert_items


def test_values_come_before_their_places():
    items, places, values = np.array([1, 2, 3], np.uint16), np.array([0, 2, 2, 3]), np.array([7, 8, 9, 6], np.uint16)
    found = insert_items(items, places, values)
    assert (found.tolist(), found.dtype) == ([7, 1, 2, 8, 9, 3, 6], np.uint16)
    assert insert_items(items[:0], places[:0], values[:0]).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float64])
@given(items=st.lists(st.integers(0, 200), max_size=20), places=st.lists(st.integers(0, 20), max_size=9))
def test_all_is_as_numpy_inserts(dtype: type, items: list[int], places: list[int]):
    array = np.array(items, dtype=dtype)
    rising = np.array(sorted(min(place, len(items)) for place in places), dtype=np.int64)
    values = np.arange(len(rising)).astype(dtype)
    found = insert_items(array, rising, values)
    assert found.dtype == dtype
    assert found.tolist() == np.insert(array, rising, values).tolist()
    assert insert_items(np.repeat(array, 2)[::2], rising, values).tolist() == found.tolist()


# --- checksums and rows ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_a_checksum_is_that_of_zlib(data, before):
    assert crc32(data, before) == zlib.crc32(data, before)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 79, 80, 127, 128, 129, 4096, 100_003])
@pytest.mark.parametrize("offset", [0, 7])
def test_a_checksum_needs_no_alignment(seed, size, offset):
    data = np.random.default_rng(seed).integers(0, 256, size + offset, dtype=np.uint8)[offset:]
    assert crc32(data) == zlib.crc32(data)
    half = size // 2
    assert crc32(data[half:], crc32(data[:half])) == zlib.crc32(data)


NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    st.integers(0, 2**40),
    st.sampled_from([1, 2, 4, 8]),
    st.none() | st.tuples(st.integers(0, 19), st.booleans(), NUMBERS),
)
def test_the_first_wrong_row_is_found(lengths, start, itemsize, damage):
    ends = [start + itemsize * sum(lengths[:row]) for row in range(len(lengths) + 1)]
    pointers = ends[:-1]
    if damage is not None and damage[0] < len(lengths):
        row, is_length, value = damage
        if is_length:
            lengths[row] = max(-(2**31), min(2**31 - 1, value))
        else:
            pointers[row] = value
    unaligned = np.frombuffer(b"xx" + np.array(lengths, np.int32).tobytes(), np.uint8)[2:].view(np.int32)
    found = check_rows(unaligned, np.array(pointers, dtype=np.int64), start=start, itemsize=itemsize)
    assert found == index_rows.check_rows(lengths, pointers, start=start, itemsize=itemsize)


@given(st.lists(st.integers(0, 5) | NUMBERS, max_size=12))
def test_the_first_fall_is_found(boundaries):
    assert first_fall(np.array(boundaries, dtype=np.int64)) == index_rows.first_fall(boundaries)
