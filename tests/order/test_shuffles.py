"""The document index and the shuffle index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.order.exposed import exposed

from tokenloom.kernels import LegacyRandom
from tokenloom.order.epochs import plan_epochs
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)


def build_document_index(indices, plan, random):
    lengths = np.ones(max(indices, default=0) + 1, dtype=np.int32)  # plans here count documents of one token
    documents, samples = build_document_and_sample_index(
        exposed(lengths, indices), plan, random, window_length=1, extra=0
    )
    assert samples.tolist() == [[0, 0], *([k, 1] for k in range(plan.num_samples))]
    return documents


def plan_of(tokens, samples):
    return plan_epochs(tokens, samples, sequence_length=1, extra=0, keep_partial=False)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 200), st.integers(0, 1000))
def test_one_generator_shuffles_documents_and_then_samples(seed, num_documents, samples, first):
    plan = plan_of(num_documents, samples)
    indices = np.arange(first, first + num_documents)
    random = LegacyRandom(seed)
    documents, shuffled = build_document_index(indices, plan, random), build_shuffle_index(plan, random)

    # The order in which one generator of NumPy is used is part of the format.
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


@given(st.integers(0, 2**32 - 1))
def test_a_separate_last_epoch_holds_every_document_once(seed):
    plan = plan_of(10, 23)
    assert (plan.num_epochs, plan.separate_final_epoch) == (3, True)
    documents = build_document_index(np.arange(10), plan, LegacyRandom(seed))
    assert sorted(documents[:20].tolist()) == sorted([*range(10)] * 2)
    assert sorted(documents[20:].tolist()) == list(range(10))
    shuffled = build_shuffle_index(plan, LegacyRandom(seed))
    assert sorted(shuffled[:20].tolist()) == list(range(20))
    assert sorted(shuffled[20:].tolist()) == list(range(20, 30))


def test_two_seeds_differ():
    plan = plan_of(100, None)
    first, second = (build_document_index(np.arange(100), plan, LegacyRandom(seed)).tolist() for seed in (1, 2))
    assert first != second


def test_without_documents_there_is_nothing_to_shuffle():
    plan = plan_of(0, None)
    random = LegacyRandom(1)
    assert build_document_index(np.arange(0), plan, random).shape == (0,)
    assert build_shuffle_index(plan, random).shape == (0,)


def test_dtypes_grow_with_the_counts():
    assert document_index_dtype(2**31 - 1) == np.int32
    assert document_index_dtype(2**31) == np.int64
    assert shuffle_index_dtype(2**32 - 3) == np.uint32
    assert shuffle_index_dtype(2**32 - 2) == np.int64
