"""`PackPlan`."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.packing.plan import padded_lengths, stable_order, uniform_plan


@pytest.fixture
def plan():
    return uniform_plan(np.array([2, 0, 1, 0, 3]), num_microbatches=2, cp_size=2, dp_size=2)


def test_packs_are_numbered_by_microbatch_and_group(plan):
    assert plan.assignments == (((1, 3), (1, 3), (2,), (2,)), ((0,), (0,), (4,), (4,)))
    assert (plan.num_ranks, plan.num_microbatches, plan.num_packs) == (4, 2, 4)
    assert plan.ids_of(0, 1).tolist() == [1, 3]
    assert plan.ids_of(1, 2).tolist() == [4]


def test_plans_are_equal_when_their_arrays_are(plan):
    same = uniform_plan(np.array([2, 0, 1, 0, 3]), num_microbatches=2, cp_size=2, dp_size=2)
    other = uniform_plan(np.array([2, 0, 1, 1, 3]), num_microbatches=2, cp_size=2, dp_size=2)
    assert plan == same
    assert plan != other
    assert plan != "plan"
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan)


@pytest.mark.parametrize(("cp_size", "expected"), [(1, [1, 7, 8]), (2, [4, 8, 8]), (3, [6, 12, 12])])
def test_lengths_are_padded_to_two_chunks_a_rank(cp_size, expected):
    assert padded_lengths(np.array([1, 7, 8]), cp_size=cp_size).tolist() == expected


def test_order_is_stable_for_small_and_large_values(rng):
    for most in (10, 2**40):
        values = rng.integers(0, most, size=500)
        assert stable_order(values).tolist() == sorted(range(500), key=lambda i: (values[i], i))
