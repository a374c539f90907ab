"""Which positions a rank gets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import MegatronPretrainingSampler


def batches(total, consumed, batch, rank, ranks, **options):
    return list(MegatronPretrainingSampler(total, consumed, batch, rank, ranks, **options))


def test_ranks_take_turns_in_micro_batches():
    assert batches(12, 0, 2, 0, 3) == [[0, 1], [6, 7]]
    assert batches(12, 0, 2, 1, 3) == [[2, 3], [8, 9]]
    assert batches(12, 0, 2, 2, 3) == [[4, 5], [10, 11]]


def test_what_was_consumed_is_left_out():
    assert batches(12, 6, 2, 1, 3) == [[8, 9]]
    assert batches(12, 1, 2, 0, 3) == [[1, 2]]
    assert batches(12, 11, 2, 0, 1) == []


def test_the_last_incomplete_chunk_is_left_out_unless_wanted():
    assert [batches(9, 0, 2, rank, 2) for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert [batches(9, 0, 2, rank, 2, drop_last=False)[2:] for rank in range(2)] == [[[8]], [[]]]
    assert [batches(11, 0, 2, rank, 2, drop_last=False)[2:] for rank in range(2)] == [[[8, 9]], [[10]]]


def test_iterating_again_begins_at_the_same_place():
    sampler = MegatronPretrainingSampler(10, 2, 2, 0, 2)
    assert list(sampler) == list(sampler) == [[2, 3], [6, 7]]
    assert len(sampler) == 2


@given(
    total=st.integers(1, 200),
    first=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    steps=st.integers(0, 10),
    start=st.integers(0, 20),
)
def test_all_ranks_together_go_through_the_order_without_gap_or_repeat(total, first, second, steps, start):
    consumed = min(start, total - 1)
    position = consumed
    order = []
    # Run some steps, then resume with other numbers of ranks and samples per rank.
    for (batch, ranks), most in ((first, steps), (second, 10**9)):
        if position >= total:
            break
        per_rank = [batches(total, position, batch, rank, ranks, drop_last=False) for rank in range(ranks)]
        samplers = [MegatronPretrainingSampler(total, position, batch, rank, ranks) for rank in range(ranks)]
        whole = [list(sampler) for sampler in samplers]
        assert {len(rank) for rank in per_rank} == {-(-(total - position) // (batch * ranks))}
        assert [len(rank) for rank in whole] == [len(sampler) for sampler in samplers]
        assert {len(rank) for rank in whole} == {(total - position) // (batch * ranks)}
        assert [rank[: len(whole[0])] for rank in per_rank] == whole  # dropping changes nothing before
        for step in list(zip(*per_rank, strict=True))[:most]:
            taken = [sample for micro_batch in step for sample in micro_batch]
            order += taken
            position += len(taken)
    assert order == list(range(consumed, consumed + len(order)))
    assert position == total


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0, 1, 0, 1), "expected total_samples of at least 1, found 0\nhint: the dataset is empty"),
        (
            (5, 5, 1, 0, 1),
            "expected consumed_samples in [0, 5), found 5\n"
            "hint: no samples are left: build the dataset for a longer run",
        ),
        (
            (5, -1, 1, 0, 1),
            "expected consumed_samples in [0, 5), found -1",
        ),
        ((5, 0, 0, 0, 1), "expected micro_batch_size of at least 1, found 0"),
        ((5, 0, 1, 2, 2), "expected data_parallel_rank in [0, 2), found 2"),
        ((5, 0, 1, -1, 2), "expected data_parallel_rank in [0, 2), found -1"),
        ((5, 0, 1, 0, 0), "expected data_parallel_rank in [0, 0), found 0"),
    ],
)
def test_values_out_of_range_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}"):
        MegatronPretrainingSampler(*arguments)
