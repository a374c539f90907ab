"""Packing schedulers: recorded schedules, rules of every plan, and errors."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.plans import NO_MULTIPLE, NOT_ENOUGH, SETTINGS, batches, check, make, plan_or_refusal

from tokenloom import (
    ConfigError,
    CostBalancedScheduler,
    DpBalancedScheduler,
    HybridCostBalancedScheduler,
    scheduler_map,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dp_balanced_schedules.json").read_text())["cases"]
NEWER = json.loads((Path(__file__).parents[1] / "golden" / "dev_packing_schedules.json").read_text())["cases"]


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_dp_balanced_gives_the_recorded_schedules(case):
    scheduler = DpBalancedScheduler(*(case[name] for name in SETTINGS))
    pairs = list(enumerate(case["lengths"]))
    if "error" in case:  # the development branch and tokenloom plan some of them
        newer = next(one for one in NEWER if all(one[name] == case[name] for name in ("lengths", *SETTINGS)))
        assert ("error" in newer) == (plan_or_refusal(scheduler, case["lengths"])[1] == NOT_ENOUGH)
    else:
        assert scheduler.get_groups_and_subsamples(pairs) == case["groups"]


def test_the_development_branch_gives_the_recorded_schedules():
    for case in NEWER:
        options = {name: case[name] for name in ("max_num_seqs", "min_cp_size") if name in case}
        scheduler = make(case["scheduler"], *(case[name] for name in SETTINGS), **options)
        pairs = list(enumerate(case["lengths"]))
        if "error" in case:
            with pytest.raises(ConfigError, match=r"sub-samples can move|cannot be split into a multiple"):
                scheduler.get_groups_and_subsamples(pairs)
        else:
            assert scheduler.get_groups_and_subsamples(pairs) == case["groups"], case


def test_dp_balanced_refuses_too_few_sub_samples():
    with pytest.raises(ConfigError) as caught:
        DpBalancedScheduler(100, 1, 8).plan([1] * 7)
    assert caught.value.message == (
        "7 sub-samples fill 1 packs, not a multiple of 8: 7 more packs are needed, but only 6 sub-samples can move"
    )
    assert caught.value.hint == "plan with `cost_balanced`, or use more samples per global batch"
    plan = CostBalancedScheduler(100, 1, 8).plan([1] * 16)
    assert [len(ids) for ids in plan.assignments[0]] == [2] * 8


def test_the_ids_of_the_caller_are_kept():
    pairs = [(70, 3), (71, 3), (9, 4)]
    for name in scheduler_map:
        groups = make(name, 4, 1, 3).get_groups_and_subsamples(pairs)
        assert sorted(itertools.chain(*groups[0])) == [9, 70, 71]


@pytest.mark.parametrize("name", ["dp_balanced", "cost_balanced"])
@given(batch=batches())
def test_uniform_plans_keep_the_rules(name, batch):
    settings, lengths = batch
    plan, refused = plan_or_refusal(make(name, *settings), lengths)
    if plan is None:
        assert refused in (NOT_ENOUGH, NO_MULTIPLE)
        if name == "cost_balanced":  # only with too few sub-samples for the packs
            capacity, cp_size, dp_size, group = settings
            packs = -(-sum(lengths) // (capacity * cp_size))
            assert len(lengths) < 3 * max(packs, dp_size * (group or 1))
        return
    check(plan, lengths, settings)
    assert (plan.cp_sizes == settings[1]).all()
    assert plan == make(name, *settings).plan(np.array(lengths, dtype=np.int32))


@given(batch=batches(longest_share=0.9), name=st.sampled_from(sorted(scheduler_map)), most=st.sampled_from([1, 3, 8]))
def test_packs_have_at_most_max_num_seqs_sub_samples(name, batch, most):
    settings, lengths = batch
    plan, _ = plan_or_refusal(make(name, *settings, max_num_seqs=most), lengths)
    if plan is not None:
        check(plan, lengths, settings)
        assert np.diff(plan.pack_offsets).max() <= most


@pytest.mark.parametrize("name", ["cost_balanced", "hybrid_cost_balanced"])
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_sub_samples_does_not_matter(name, batch, seed):
    settings, lengths = batch
    shuffled = np.random.default_rng(seed).permutation(lengths)

    def shape(values):
        plan, refused = plan_or_refusal(make(name, *settings), values)
        if plan is None:
            return refused
        packs = [[values[i] for i in ids] for ids in np.split(plan.ids, plan.pack_offsets[1:-1])]
        return [sorted(map(int, pack)) for pack in packs], plan.packs.tolist(), plan.cp_sizes.tolist()

    assert shape(shuffled) == shape(lengths)


def test_batches_that_fill_no_multiple_of_packs_are_refused():
    # Nine sub-samples need a pack each, but packs come in multiples of 4.
    with pytest.raises(ConfigError, match="9 sub-samples of 54 tokens do not fill a multiple of 4 packs"):
        CostBalancedScheduler(8, 1, 2, 2).plan([6] * 9)
    with pytest.raises(ConfigError, match="1 sub-samples cannot occupy 6 ranks in groups of powers of two"):
        HybridCostBalancedScheduler(8, 1, 6).plan([5])
    with pytest.raises(ConfigError, match="2 sub-samples cannot occupy 4 ranks"):
        HybridCostBalancedScheduler(8, 1, 4, 3).plan([5, 5])


class FallingCost:
    def cost(self, lengths, cp_size):
        return 1.0 / lengths


@pytest.mark.parametrize("name", ["cost_balanced", "hybrid_cost_balanced"])
def test_costs_that_fall_with_the_length_are_refused(name):
    with pytest.raises(ConfigError, match="costs must be positive, finite and not decrease with the length"):
        make(name, 8, 1, 2, cost_model=FallingCost()).plan([1, 2, 3])


def test_recorded_schedules_are_complete():
    assert (len(GOLDEN), sum("error" in case for case in GOLDEN)) == (60, 18)
    assert (len(NEWER), sum("error" in case for case in NEWER)) == (80, 18)
