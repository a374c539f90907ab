"""Exposed documents as a value: a range where they are one, whatever they were given as."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.order.exposed import exposed

from tokenloom.order import documents
from tokenloom.order.documents import Rows, is_range

LENGTHS = np.array([4, 6, 3, 0, 2**31 - 1], dtype=np.int32)


@pytest.mark.parametrize("indices", [[], [0], [2], [0, 1, 2], [2, 0], [0, 2], [0, 2, 2], [1, 1, 3, 4], [0, 1, 3, 2, 4]])
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_tokens_of_chosen_documents(indices, block, monkeypatch):
    monkeypatch.setattr(documents, "_BLOCK_ROWS", block)
    chosen = np.array(indices, dtype=np.int32)
    consecutive = indices == list(range(indices[0], indices[0] + len(indices))) if indices else False
    assert is_range(chosen, block=block) == consecutive
    found = exposed(LENGTHS, chosen)
    assert found.count_tokens() == sum(int(LENGTHS[i]) for i in indices)
    assert [length for part in found.length_blocks() for length in part.tolist()] == LENGTHS[indices].tolist()
    assert found.rows.consecutive == (range(indices[0], indices[-1] + 1) if consecutive else None)
    assert found.rows.largest == max(indices, default=-1)
    assert (found.rows.array() == chosen).all()
    assert found.rows.array().dtype == np.int32


@pytest.mark.parametrize(
    ("rows", "dtype"), [(range(3, 7), np.int32), (range(2**31, 2**31 + 2), np.int64), (range(0), np.int32)]
)
def test_a_range_is_the_array_of_it(rows, dtype):
    found = Rows.of(rows)
    assert (len(found), found.array().tolist(), found.array().dtype) == (len(rows), list(rows), dtype)
    assert found.consecutive == rows
    assert found.largest == (rows[-1] if rows else -1)


def test_rows_of_a_range_are_small_in_a_pickle():
    rows = Rows.of(np.arange(100_000))
    assert len(pickle.dumps(rows)) < 500
    again = pickle.loads(pickle.dumps(rows))
    assert (again.chosen, again.array().dtype) == (range(100_000), np.int64)
