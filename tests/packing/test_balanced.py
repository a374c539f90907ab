"""Packs of balanced cost."""

from __future__ import annotations

import numpy as np
import pytest
from tests.packing.plans import make, spread

from tokenloom import ConfigError, CostBalancedScheduler, PolynomialCost
from tokenloom.packing.cost import least_slowest_cost
from tokenloom_check.packing import rank_costs


def test_the_longest_sub_samples_are_in_one_microbatch():
    plan = CostBalancedScheduler(8, 1, 2).plan([1, 8, 2, 2, 8, 2, 1])
    assert set(plan.assignments[0]) == {(1,), (4,)}
    assert [sum([1, 8, 2, 2, 8, 2, 1][i] for i in ids) for ids in plan.assignments[1]] == [4, 4]


@pytest.mark.parametrize("num_ranks", [8, 64])
@pytest.mark.parametrize("kind", ["lognormal", "bimodal"])
def test_long_tails_are_balanced_close_to_the_bound(rng, num_ranks, kind):
    count = 512 * num_ranks  # many, so that chance averages out
    if kind == "lognormal":
        lengths = np.clip(rng.lognormal(np.log(800), 1.0, size=count).astype(np.int64), 1, 8192)
    else:
        lengths = np.where(rng.random(count) < 0.1, rng.integers(6000, 8193, count), rng.integers(50, 600, count))
    model = PolynomialCost()
    ours, in_order = (
        rank_costs(make(name, 8192, 1, num_ranks).plan(lengths), lengths, model)
        for name in ("cost_balanced", "dp_balanced")
    )
    longest_first = -np.sort(-lengths)
    least = least_slowest_cost(longest_first, model.cost(longest_first, 1), 8192, num_ranks)
    assert ours.max(axis=1).sum() < 1.04 * least  # at most 1.022 in 3743 draws
    assert ours.max(axis=1).sum() < 0.75 * in_order.max(axis=1).sum()
    assert len(ours) <= -(-int(lengths.sum()) // (8192 * num_ranks)) + 1
    assert len(ours) < len(in_order)


def test_long_sub_samples_leave_no_room_for_max_num_seqs():
    # Four packs of 9 + 1, and two of four.
    assert CostBalancedScheduler(10, 1, 2, max_num_seqs=4).plan([9] * 4 + [1] * 12).num_microbatches == 3


@pytest.mark.parametrize("num_ranks", [8, 64])
def test_a_limit_on_sub_samples_costs_no_microbatch(num_ranks):
    lengths = spread("lognormal", 128 * num_ranks)
    free = CostBalancedScheduler(40960, 1, num_ranks).plan(lengths)
    most = int(1.5 * len(lengths) / free.num_packs)
    assert np.diff(free.pack_offsets).max() > most
    plan = CostBalancedScheduler(40960, 1, num_ranks, max_num_seqs=most).plan(lengths)
    assert np.diff(plan.pack_offsets).max() <= most
    assert plan.num_microbatches == free.num_microbatches


def test_ranks_take_turns_with_the_costliest_packs(rng):
    lengths = np.clip(rng.lognormal(7, 1.0, size=8192).astype(np.int64), 1, 8192)
    totals = rank_costs(CostBalancedScheduler(8192, 1, 16).plan(lengths), lengths, PolynomialCost()).sum(axis=0)
    assert (
        totals.max() / totals.mean() < 1.006
    )  # at most 1.0031 in 3848 draws; without reversed microbatches at least 1.0091


@pytest.mark.parametrize(
    ("settings", "count", "packs"), [((8, 1, 8, None), 7, 8), ((8, 1, 2, 4), 7, 8), ((8, 2, 4, 2), 1, 8)]
)
def test_too_few_sub_samples_for_all_packs_are_refused(settings, count, packs):
    with pytest.raises(ConfigError) as caught:
        CostBalancedScheduler(*settings).plan([4] * count)
    assert caught.value.message == (
        f"{count} sub-samples of {4 * count} tokens do not fill a multiple of {packs} packs of at most "
        f"{8 * settings[1]} tokens"
    )
