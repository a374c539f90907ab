"""Ways to share sub-samples among ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.packing.sharing import SharedBatch


def batch(lengths, num_ranks, *, capacity, needs=None):
    """Returns a batch whose costs are squares, shared without any loss."""
    found = np.array(lengths, dtype=np.int64)
    return SharedBatch(
        lengths=found,
        needs=np.ones_like(found) if needs is None else np.array(needs, dtype=np.int64),
        costs=lambda size, count: 1000 * found[:count] ** 2 // size,
        group_sizes=tuple(2**k for k in range(num_ranks.bit_length())),
        capacity=capacity,
        full=1000 * capacity**2,
        num_ranks=num_ranks,
    )


def sizes(way):
    return dict(zip(way.numbers.tolist(), way.sizes.tolist(), strict=True))


def test_nothing_is_shared_where_packs_are_even():
    first = next(batch([2] * 32, 4, capacity=8).promising_first())
    assert (sizes(first), first.least) == ({}, 32 * 4000 / 4)


def test_the_longest_that_do_not_fill_a_step_are_shared_by_all_ranks():
    first = next(batch([8, 7, 7, 7, 7], 4, capacity=8).promising_first())
    assert sizes(first) == {0: 4}
    assert first.least == 16_000 + 49_000


def test_what_is_left_of_those_that_fill_two_steps_is_cut_again():
    # Three of two ranks each fill a step and a half, so two of them fill one, and the third gets all four ranks.
    ways = [sizes(way) for way in batch([8, 8, 8, 1, 1, 1, 1], 4, capacity=8).promising_first()]
    assert {0: 4, 1: 2, 2: 2} in ways


def test_each_gets_the_ranks_that_it_needs_at_least():
    for way in batch([20, 9, 8, 8, 1, 1, 1, 1], 8, capacity=8, needs=[4, 2, 1, 1, 1, 1, 1, 1]).promising_first():
        found = sizes(way)
        assert found[0] >= 4
        assert found[1] >= 2


def test_fewer_sub_samples_than_ranks_are_not_shared_more_than_they_need():
    assert [sizes(way) for way in batch([8, 7], 4, capacity=8).promising_first()] == [{}]


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=60),
    num_ranks=st.sampled_from([1, 2, 6, 8, 16]),
)
def test_ways_are_told_once_and_cost_what_they_say(lengths, num_ranks):
    ordered = sorted(lengths, reverse=True)
    whole = batch(ordered, num_ranks, capacity=64)
    ways = list(whole.promising_first())
    assert len({tuple(sorted(sizes(way).items())) for way in ways}) == len(ways)
    for way in ways:
        assert sorted(way.numbers.tolist()) == list(range(len(way.sizes)))  # the longest
        assert way.costs.tolist() == [1000 * ordered[i] ** 2 // size for i, size in sizes(way).items()]
        assert (np.diff(way.costs) <= 0).all()
        assert way.least >= whole.even_share(way) * (1 - 1e-12)
