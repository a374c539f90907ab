"""Hybrid groups: long sub-samples get the ranks they need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.plans import NO_GROUPS, batches, check, plan_or_refusal, spread

from tokenloom import ConfigError, CostBalancedScheduler, HybridCostBalancedScheduler, PolynomialCost
from tokenloom_check.packing import rank_costs


def test_long_sub_samples_get_the_ranks_they_need():
    scheduler = HybridCostBalancedScheduler(8, 1, 8, cost_model=PolynomialCost(linear=1.0, quadratic=0.0))
    plan = scheduler.plan([32, 9, 8, 3, 5])
    assert plan.num_microbatches == 1
    assert plan.cp_sizes.tolist() == [[4, 4, 4, 4, 2, 2, 1, 1]]
    assert plan.assignments[0] == ((0,), (0,), (0,), (0,), (1,), (1,), (2,), (3, 4))


def test_groups_grow_if_ranks_would_wait_for_a_long_sub_sample():
    lengths = [64, *[8] * 64]
    plan = HybridCostBalancedScheduler(16, 1, 16).plan(lengths)
    giant = [size for size, ids in zip(plan.cp_sizes[0], plan.assignments[0], strict=True) if 0 in ids]
    assert giant == [16] * 16  # 4 ranks would fit its tokens


@pytest.mark.parametrize(
    ("lengths", "sizes"), [([5], [8] * 8), ([5, 4, 4], [4, 4, 4, 4, 2, 2, 2, 2]), ([5] * 7, [2, 2, 1, 1, 1, 1, 1, 1])]
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
    for pack in range(plan.num_packs):
        ids = plan.ids[plan.pack_offsets[pack] : plan.pack_offsets[pack + 1]]
        size = int(plan.cp_sizes[plan.packs == pack][0])
        # A rank gets two equal chunks of each sub-sample.
        chunks = [-(-lengths[number] // (2 * size)) for number in ids]
        assert size == 1 or 2 * sum(chunks) <= settings[0]
    assert plan == HybridCostBalancedScheduler(*settings).plan(lengths)


def test_ranks_share_what_all_others_would_wait_for():
    lengths = [8, *[2] * 32]  # all fit one rank, but the longest is a third of all work
    alone = CostBalancedScheduler(8, 1, 4).plan(lengths)
    shared = HybridCostBalancedScheduler(8, 1, 4).plan(lengths)
    assert critical_path(alone, lengths) == 1.75
    assert critical_path(shared, lengths) == 1.0


def test_sub_samples_that_do_not_fill_a_step_are_shared():
    lengths = [100] * 5 + [4] * 12  # one more than fits four ranks at once
    plan = HybridCostBalancedScheduler(100, 1, 4).plan(lengths)
    packs = np.repeat(np.arange(plan.num_packs), np.diff(plan.pack_offsets))
    sizes = {int(number): plan.cp_sizes[plan.packs == pack][0] for number, pack in zip(plan.ids, packs, strict=True)}
    assert sorted(int(sizes[number]) for number in range(5)) == [1, 1, 1, 1, 4]


def test_short_ones_join_groups_that_would_wait_for_costlier_ones():
    lengths = spread("lognormal", 2048)
    plan = HybridCostBalancedScheduler(40960, 1, 64).plan(lengths)
    counts = np.diff(plan.pack_offsets)[plan.packs]
    assert counts[plan.cp_sizes > 1].max() > 1
    few = HybridCostBalancedScheduler(40960, 1, 64, None, 1).plan(lengths[-128:])
    assert np.diff(few.pack_offsets).max() == 1


@pytest.mark.parametrize("linear", [0.0, 24576.0])
@pytest.mark.parametrize("kind", ["uniform", "lognormal", "bimodal", "cliff"])
@pytest.mark.parametrize("num_ranks", [8, 64])
def test_the_critical_path_is_close_to_the_mean(kind, num_ranks, linear):
    model = PolynomialCost(linear=linear, quadratic=1.0)
    lengths = spread(kind, 32 * num_ranks)
    plan = HybridCostBalancedScheduler(40960, 1, num_ranks, cost_model=model).plan(lengths)
    assert critical_path(plan, lengths, model) <= 1.05


def critical_path(plan, lengths, model=None):
    costs = rank_costs(plan, np.array(lengths), model or PolynomialCost())
    return float(costs.max(axis=1).sum() / costs.mean(axis=1).sum())


def test_a_sub_sample_that_fits_no_group_is_refused():
    with pytest.raises(ConfigError) as caught:
        HybridCostBalancedScheduler(9, 1, 6).plan([9, 33])
    assert caught.value.message == "sub-sample 1 has 33 tokens; a pack has at most 32"
    HybridCostBalancedScheduler(9, 1, 6).plan([9, 32, 9])
