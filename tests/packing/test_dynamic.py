"""Plans of Megatron's development branch; recorded plans are in `test_schedulers`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.plans import batches, check, plan_or_refusal

from tokenloom import ConfigError, DefaultDynamicCPScheduler, HybridCostBalancedScheduler
from tokenloom.packing.cost import PolynomialCost
from tokenloom_check.packing import rank_costs


def test_short_ones_may_be_shared_where_that_frees_the_busiest_rank():
    # The longest needs two ranks, and a rank alone with the next one would be the busiest.
    plan = DefaultDynamicCPScheduler(8, cp_size=4, dp_size=1).plan([9, 8])
    assert (plan.assignments, plan.cp_sizes.tolist()) == ((((0,), (0,), (1,), (1,)),), [[2, 2, 2, 2]])


@pytest.mark.parametrize(("length", "least", "size"), [(8, 1, 1), (9, 1, 2), (17, 1, 4), (33, 1, 6), (1, 2, 2)])
def test_a_sub_sample_gets_the_smallest_group_that_fits(length, least, size):
    plan = DefaultDynamicCPScheduler(8, 6, 1, min_cp_size=least).plan([length, *[1] * 40])
    assert plan.cp_sizes[0, 0] == size


@given(batch=batches(), share=st.sampled_from([1, 1, 2, 4]))
def test_plans_keep_the_rules_and_are_those_of_every_rank(batch, share):
    (capacity, cp_size, dp_size, group), lengths = batch
    share = share if (cp_size * dp_size) % share == 0 else 1
    settings = (capacity, cp_size, dp_size, group)
    plan, refused = plan_or_refusal(DefaultDynamicCPScheduler(*settings, min_cp_size=share), lengths)
    if plan is None:
        assert group is not None, refused
        return
    check(plan, lengths, settings)
    assert plan.cp_sizes.min() >= share
    again = DefaultDynamicCPScheduler(*settings, min_cp_size=share).plan(np.array(lengths, dtype=np.int32))
    assert plan == again


def test_our_groups_take_less_time():
    rng, shares = np.random.default_rng(0), []
    for _ in range(20):
        lengths = np.clip(rng.lognormal(7, 1.2, size=640).astype(np.int64), 16, 32768)
        took = []
        for kind in (HybridCostBalancedScheduler, DefaultDynamicCPScheduler):
            plan = kind(4096, 1, 64).plan(lengths)
            took.append(float(rank_costs(plan, lengths, PolynomialCost()).max(axis=1).sum()))
        shares.append(took[0] / took[1])
    assert np.median(shares) < 0.95


def test_plans_exist_where_megatron_fails_or_loops():
    never_ends = DefaultDynamicCPScheduler(8, 2, 3, 2).plan([32, 16])
    assert never_ends.assignments == (((1,),) * 6, ((0,),) * 6)
    no_power_of_two = DefaultDynamicCPScheduler(8, 2, 3).plan([33])
    assert no_power_of_two.assignments == (((0,),) * 6,)


@pytest.mark.parametrize(
    ("settings", "more", "lengths", "message"),
    [
        *(((8, 2, 4), {"min_cp_size": least}, [], "min_cp_size") for least in (0, 3, 16, 2.5)),
        ((8, 2, 2), {}, [1, 33], "sub-sample 1 has 33 tokens; a pack has at most 32"),
        ((8, 2, 2, 2), {}, [32], "1 microbatches cannot be split into a multiple of 2"),
        ((8, 1, 5, 2), {}, [16, 16, 8], r"2 groups of \[2, 1\] ranks cannot be widened to 5 ranks"),
        ((8, 1, 1), {"max_num_seqs": 2}, [1, 1, 1], "a pack has 3 sub-samples, more than 2\nhint: plan with `hybrid"),
    ],
)
def test_batches_without_a_plan_are_refused(settings, more, lengths, message):
    with pytest.raises(ConfigError, match=message):
        DefaultDynamicCPScheduler(*settings, **more).plan(lengths)
