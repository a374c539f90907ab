"""Counts of sequences by length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.length_histogram import length_histogram


def lengths_of(*lengths: int) -> np.ndarray:
    return np.array(lengths, dtype=np.int32)


def test_lengths_are_counted_one_by_one_then_by_quarters_of_doublings():
    found = length_histogram([lengths_of(0, 0, 1, 7, 8, 9), lengths_of(10, 2**16, 2**31 - 1)])
    assert found.edges[:14].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19]
    assert found.edges[-1] == 2**31
    assert found.counts[:10].tolist() == [2, 1, 0, 0, 0, 0, 0, 1, 2, 1]
    assert found.tokens[:10].tolist() == [0, 1, 0, 0, 0, 0, 0, 7, 17, 10]
    assert (found.counts[-1], found.tokens[-1]) == (1, 2**31 - 1)
    assert (found.num_sequences, found.num_tokens) == (9, 35 + 2**16 + 2**31 - 1)


def test_nothing_is_counted_of_nothing():
    assert length_histogram([]).num_sequences == length_histogram([lengths_of()]).num_tokens == 0


def test_a_negative_length_is_an_error():
    with pytest.raises(DatasetFormatError, match=r"a\.idx: expected lengths from 0 on, found -3"):
        length_histogram([lengths_of(5), lengths_of(4, -3)], name="a.idx")


@given(st.lists(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**31 - 1)), max_size=20), max_size=4))
def test_counts_are_those_of_numpy_and_can_be_added(parts: list[list[int]]):
    blocks = [lengths_of(*part) for part in parts]
    found = length_histogram(blocks)
    everything = np.concatenate([lengths_of(), *blocks]).astype(np.int64)
    np.testing.assert_array_equal(found.counts, np.histogram(everything, found.edges)[0])
    assert found.num_tokens == everything.sum()
    added = sum((length_histogram([block]) for block in blocks), start=length_histogram([]))
    np.testing.assert_array_equal(added.tokens, found.tokens)
