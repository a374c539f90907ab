"""Hybrid groups: long sub-samples get the ranks they need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.plans import NO_GROUPS, batches, check, plan_or_refusal

from tokenloom import (
    ConfigError,
    HybridCostBalancedScheduler,
    PolynomialCost,
)


def test_long_sub_samples_get_the_ranks_they_need():
    scheduler = HybridCostBalancedScheduler(8, 1, 8, cost_model=PolynomialCost(linear=1.0, quadratic=0.0))
    plan = scheduler.plan([32, 9, 8, 3, 5])
    assert plan.num_microbatches == 1
    assert plan.cp_sizes.tolist() == [[4, 4, 4, 4, 2, 2, 1, 1]]
    assert plan.assignments[0] == ((0,), (0,), (0,), (0,), (1,), (1,), (2,), (3, 4))


def test_groups_grow_where_ranks_would_wait_for_a_giant():
    lengths = [64, *[8] * 64]
    plan = HybridCostBalancedScheduler(16, 1, 16).plan(lengths)
    giant = [size for size, ids in zip(plan.cp_sizes[0], plan.assignments[0], strict=True) if 0 in ids]
    assert giant == [16] * 16  # 4 would do for its tokens


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([5], [8] * 8), ([5, 4, 4], [4, 4, 4, 4, 2, 2, 2, 2]), ([5] * 7, [2, 2, 1, 1, 1, 1, 1, 1])],
)
def test_fewer_sub_samples_than_ranks_share_all_of_them(lengths, sizes):
    plan = HybridCostBalancedScheduler(8, 1, 8).plan(lengths)
    assert plan.cp_sizes.tolist() == [sizes]


@given(batch=batches(), factor=st.sampled_from([1.0, 2.0, 5.0]))
def test_hybrid_plans_keep_the_rules(batch, factor):
    settings, lengths = batch
    scheduler = HybridCostBalancedScheduler(*settings)
    lengths = [min(int(length * factor), scheduler.max_tokens) for length in lengths]
    plan, refused = plan_or_refusal(scheduler, lengths)
    if plan is None:
        assert refused == NO_GROUPS
        return
    check(plan, lengths, settings)
    assert set(np.unique(plan.cp_sizes).tolist()) <= set(scheduler.group_sizes)
    scarce = len(lengths) == plan.num_packs
    for pack in range(plan.num_packs):
        ids = plan.ids[plan.pack_offsets[pack] : plan.pack_offsets[pack + 1]]
        size = int(plan.cp_sizes[plan.packs == pack][0])
        if size > 1:
            assert len(ids) == 1
            assert scarce or lengths[ids[0]] > settings[0]
        # What a rank gets are two equal chunks.
        assert -(-lengths[ids[0]] // (2 * size)) * 2 <= settings[0] or size == 1
    assert plan == HybridCostBalancedScheduler(*settings).plan(lengths)


def test_one_that_is_too_long_for_the_largest_group_is_named():
    with pytest.raises(ConfigError) as caught:
        HybridCostBalancedScheduler(9, 1, 6).plan([9, 33])
    assert caught.value.message == "sub-sample 1 has 33 tokens, but the largest group, of 4 ranks of 9, holds 32"
    HybridCostBalancedScheduler(9, 1, 6).plan([9, 32, 9])
