"""Recycled memory of batches: never reused while anything refers to it."""

import gc
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import make_dataset, random_documents, write_corpus

from tokenloom.datasets.sample_arrays import LARGE_BYTES, recycled_empty

KEPT_BYTES = 64 << 20


def address(array):
    return array.__array_interface__["data"][0]


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


SMALL = [((3,), np.int64), ((0,), np.int64), ((0, 5), np.int32)]


@pytest.mark.parametrize(
    ("shape", "dtype"), [*SMALL, ((4, 8192), np.int64), ((2, 3, 40_000), np.float32), ((1 << 20,), bool)]
)
def test_arrays_are_what_numpy_would_give(shape, dtype):
    array, expected = recycled_empty(shape, dtype), np.empty(shape, dtype)
    assert (array.shape, array.dtype, array.strides) == (expected.shape, expected.dtype, expected.strides)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    if array.nbytes >= LARGE_BYTES:
        assert address(array) % 64 == 0


def test_the_memory_of_a_dropped_array_is_used_again():
    array = recycled_empty((LARGE_BYTES + 8,), np.uint8)
    array[:] = 7
    before = address(array)
    del array
    again = recycled_empty((LARGE_BYTES + 8,), np.uint8)
    assert (address(again), set(again)) == (before, {7})  # recycled memory is not cleared


def test_memory_that_a_view_or_a_tensor_refers_to_is_not_used_again():
    torch = pytest.importorskip("torch")
    first, second = (recycled_empty((LARGE_BYTES, 2), np.int64) for _ in range(2))
    view, tensor = first[5:7, 0], torch.from_numpy(second)[9]
    view[:], tensor[:] = 1, 2
    del first, second
    for _ in range(3):
        recycled_empty((LARGE_BYTES, 2), np.int64).fill(0)
    assert view.tolist() == [1, 1]
    assert tensor.tolist() == [2, 2]


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 8, 16]), st.booleans()), max_size=40))
def test_arrays_that_live_at_the_same_time_share_nothing(steps):
    alive: dict[int, tuple[int, np.ndarray]] = {}
    for number, (slot, more, drop) in enumerate(steps):
        alive.pop(slot, None)
        if not drop:
            array = recycled_empty(((LARGE_BYTES + more) // 8,), np.int64)
            array[:] = number
            alive[slot] = number, array
        for value, array in alive.values():
            assert (array == value).all()


@pytest.mark.slow
def test_no_more_than_a_few_dropped_arrays_are_kept():
    gc.collect()  # garbage freed during the measurement would hide new allocations
    before = resident_bytes()
    arrays = [recycled_empty((16 << 20,), np.uint8) for _ in range(20)]
    for array in arrays:
        array.fill(1)
    assert resident_bytes() - before > 300 << 20
    arrays.clear()
    del array
    assert resident_bytes() - before < KEPT_BYTES + (4 << 20)


def test_a_fork_has_its_own():
    array = recycled_empty((LARGE_BYTES,), np.uint8)
    array[:] = 1
    if (child := os.fork()) == 0:
        try:
            del array
            other = recycled_empty((LARGE_BYTES,), np.uint8)
            other[:] = 2
            os._exit(0 if (other == 2).all() else 1)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 1).all()


def test_batches_are_put_where_dropped_ones_were_and_never_where_others_are(tmp_path):
    documents = random_documents(np.random.default_rng(0), count=40, longest=4000, vocab_size=100)
    dataset = make_dataset(write_corpus(tmp_path / "corpus", documents), sequence_length=2048)
    positions = list(range(16))
    expected = {name: array.copy() for name, array in dataset.batch(positions).items()}
    kept = dataset.batch(positions)
    before = {address(array) for array in dataset.batch(positions).values()}
    again = dataset.batch(positions[::-1])
    assert {address(array) for array in again.values()} == before
    assert all((kept[name] == expected[name]).all() for name in expected)
