"""The document index and the shuffle index."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.exposed import exposed

from tokenloom.kernels.order import LegacyRandom
from tokenloom.order import documents
from tokenloom.order.documents import Rows, is_range
from tokenloom.order.epochs import WindowEpochs
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)


def build_document_index(indices, plan, random):
    lengths = np.ones(max(indices, default=0) + 1, dtype=np.int32)  # documents of one token each
    shown = exposed(lengths, indices)
    documents, samples = build_document_and_sample_index(shown, plan, random, window_length=1, extra=0)
    assert samples.tolist() == [[0, 0], *([k, 1] for k in range(plan.num_samples))]
    return documents


def plan_of(tokens, samples):
    return WindowEpochs(num_tokens=tokens, sequence_length=1, extra=0, keep_partial=False).plan(samples)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 200), st.integers(0, 1000))
def test_one_generator_shuffles_documents_and_then_samples(seed, num_documents, samples, first):
    plan = plan_of(num_documents, samples)
    indices = np.arange(first, first + num_documents)
    random = LegacyRandom(seed)
    documents, shuffled = build_document_index(indices, plan, random), build_shuffle_index(plan, random)

    # The order of the draws from NumPy's generator is part of the format.
    numpy_random = np.random.RandomState(seed)
    final = num_documents if plan.separate_final_epoch else 0
    expected = np.tile(indices, plan.num_epochs).astype(np.int32)
    numpy_random.shuffle(expected[: len(expected) - final])
    if final:
        numpy_random.shuffle(expected[-final:])
    assert documents.dtype == np.int32
    assert documents.tolist() == expected.tolist()

    expected = np.arange(plan.num_samples, dtype=np.uint32)
    numpy_random.shuffle(expected[: plan.num_samples_sans_final_epoch])
    if final:
        numpy_random.shuffle(expected[plan.num_samples_sans_final_epoch :])
    assert shuffled.dtype == np.uint32
    assert shuffled.tolist() == expected.tolist()


def test_dtypes_grow_with_the_counts():
    assert document_index_dtype(2**31 - 1) == np.int32
    assert document_index_dtype(2**31) == np.int64
    assert shuffle_index_dtype(2**32 - 3) == np.uint32
    assert shuffle_index_dtype(2**32 - 2) == np.int64


# --- exposed documents ----------------------------------------------------------------------------------------------


LENGTHS = np.array([4, 6, 3, 0, 2**31 - 1], dtype=np.int32)


@pytest.mark.parametrize("indices", [[], [2], [0, 1, 2], [2, 0], [0, 2, 2], [1, 1, 3, 4], [0, 1, 3, 2, 4]])
@pytest.mark.parametrize("block", [1, 3])
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
