"""Packing schedulers: recorded schedules, rules that every plan keeps, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import (
    ConfigError,
    CostBalancedScheduler,
    DpBalancedScheduler,
    HybridCostBalancedScheduler,
    PolynomialCost,
    scheduler_map,
)
from tokenloom.packing.bounds import least_slowest_cost, least_step_imbalance
from tokenloom.packing.report import rank_costs

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dp_balanced_schedules.json").read_text())["cases"]
SETTINGS = ("max_seqlen_per_dp_cp_rank", "cp_size", "dp_size", "microbatch_group_size_per_vp_stage")


def make(name, *settings, **options):
    return scheduler_map[name](*settings, **options)


# --- the reference's schedules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_dp_balanced_gives_the_recorded_schedules(case):
    scheduler = DpBalancedScheduler(*(case[name] for name in SETTINGS))
    pairs = list(enumerate(case["lengths"]))
    if "error" in case:
        with pytest.raises(ConfigError, match="not enough samples to move"):
            scheduler.get_groups_and_subsamples(pairs)
    else:
        assert scheduler.get_groups_and_subsamples(pairs) == case["groups"]


def test_recorded_schedules_are_all_there_refusals_included():
    assert (len(GOLDEN), sum("error" in case for case in GOLDEN)) == (60, 18)


def test_what_the_reference_refuses_or_leaves_empty_is_an_error_with_the_numbers():
    with pytest.raises(ConfigError) as caught:
        DpBalancedScheduler(100, 1, 8).plan([1] * 16)
    assert caught.value.message == (
        "16 sub-samples fill 1 packs, expected a multiple of 8; not enough samples to move: 7 packs are missing, but "
        "those behind the first can spare 0 sub-samples"
    )
    assert caught.value.hint == "plan with `cost_balanced`, or take more samples into a global batch"
    plan = CostBalancedScheduler(100, 1, 8).plan([1] * 16)
    assert [len(ids) for ids in plan.assignments[0]] == [2] * 8
    with pytest.raises(ConfigError, match=r"^sub-sample 0 has 101 tokens, but a pack holds 100 \(1 ranks of 100\)\n"):
        DpBalancedScheduler(100, 1, 1).plan([101, 3])


def test_the_ids_of_the_caller_are_kept():
    pairs = [(70, 3), (71, 3), (9, 4)]
    for name in ("dp_balanced", "cost_balanced", "hybrid_cost_balanced"):
        groups = make(name, 4, 1, 3).get_groups_and_subsamples(pairs)
        assert sorted(itertools.chain(*groups[0])) == [9, 70, 71]


def test_required_keys_are_those_of_the_reference():
    keys = ["tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len"]
    assert DpBalancedScheduler(1, 1, 1).get_required_sample_keys() == keys


# --- literal plans ----------------------------------------------------------------------------------------------------


def test_the_longest_share_a_microbatch():
    plan = CostBalancedScheduler(8, 1, 2).plan([1, 8, 2, 2, 8, 2, 1])
    assert set(plan.assignments[0]) == {(1,), (4,)}
    assert [sum([1, 8, 2, 2, 8, 2, 1][i] for i in ids) for ids in plan.assignments[1]] == [4, 4]


def test_equal_lengths_are_dealt_out_equally():
    plan = CostBalancedScheduler(100, 2, 4).plan([25] * 64)
    assert plan.num_microbatches == 2
    assert {len(ids) for ids in itertools.chain(*plan.assignments)} == {8}


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


# --- rules ------------------------------------------------------------------------------------------------------------


@st.composite
def batches(draw, *, longest_share=1.0):
    """Draws (settings, lengths): lengths of many kinds, none above the share of what a pack holds."""
    capacity = draw(st.sampled_from([8, 100, 4096]))
    cp_size, dp_size = draw(st.sampled_from([(1, 1), (1, 8), (2, 4), (4, 2), (1, 16), (3, 2), (1, 6)]))
    group = draw(st.sampled_from([None, None, 2, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 400))
    longest = max(1, int(capacity * cp_size * longest_share))
    kind = draw(st.sampled_from(["uniform", "lognormal", "bimodal", "equal"]))
    if kind == "uniform":
        lengths = rng.integers(1, longest + 1, size=count)
    elif kind == "lognormal":
        lengths = rng.lognormal(np.log(longest) - 2, 1.0, size=count).astype(np.int64)
    elif kind == "bimodal":
        lengths = np.where(rng.random(count) < 0.15, longest, max(longest // 25, 1))
    else:
        lengths = np.full(count, rng.integers(1, longest + 1))
    return (capacity, cp_size, dp_size, group), np.clip(lengths, 1, longest).tolist()


def check(plan, lengths, settings):
    """Holds a plan to the rules that all plans keep."""
    capacity, cp_size, dp_size, group = settings
    lengths = np.array(lengths)
    assert plan.num_ranks == cp_size * dp_size
    assert plan.packs.shape == plan.cp_sizes.shape == (plan.num_microbatches, plan.num_ranks)
    assert plan.num_microbatches % (group or 1) == 0
    assert sorted(plan.ids.tolist()) == list(range(len(lengths)))
    assert sorted(np.unique(plan.packs).tolist()) == list(range(plan.num_packs))
    assert (np.diff(plan.pack_offsets) > 0).all()
    tokens = np.add.reduceat(lengths[plan.ids], plan.pack_offsets[:-1])[plan.packs]
    assert (tokens <= capacity * plan.cp_sizes).all()
    for microbatch, rank in itertools.product(range(min(plan.num_microbatches, 4)), range(plan.num_ranks)):
        ranks = plan.group_of(microbatch, rank)
        assert rank in ranks
        assert len(ranks) == np.count_nonzero(plan.packs[microbatch] == plan.packs[microbatch, rank])
        assert {int(plan.packs[microbatch, other]) for other in ranks} == {int(plan.packs[microbatch, rank])}


NOT_ENOUGH = "not enough samples to move"
NO_MULTIPLE = "none of them empty"
NO_GROUPS = "in groups of powers of two"


def plan_or_refusal(scheduler, lengths):
    """Returns the plan, or the words that say which refusal it is."""
    try:
        return scheduler.plan(lengths), None
    except ConfigError as error:
        return None, next(words for words in (NOT_ENOUGH, NO_MULTIPLE, NO_GROUPS) if words in error.message)


@pytest.mark.parametrize("name", ["dp_balanced", "cost_balanced"])
@given(batch=batches())
def test_uniform_plans_keep_the_rules(name, batch):
    settings, lengths = batch
    plan, refused = plan_or_refusal(make(name, *settings), lengths)
    if plan is None:
        assert refused in (NOT_ENOUGH, NO_MULTIPLE)
        if name == "cost_balanced":  # only where there are next to no sub-samples for so many packs
            capacity, cp_size, dp_size, group = settings
            packs = -(-sum(lengths) // (capacity * cp_size))
            assert len(lengths) < 3 * max(packs, dp_size * (group or 1))
        return
    check(plan, lengths, settings)
    assert (plan.cp_sizes == settings[1]).all()
    assert plan == make(name, *settings).plan(np.array(lengths, dtype=np.int32))


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


@given(
    lengths=st.lists(st.integers(1, 10), min_size=2, max_size=6),
    num_ranks=st.integers(1, 2),
    linear=st.sampled_from([0.0, 3.0]),
)
def test_nothing_beats_the_bounds(lengths, num_ranks, linear):
    lengths = np.array(sorted(lengths, reverse=True))
    costs = PolynomialCost(linear=linear).cost(lengths, 1)
    slowest, worst = [], []
    for num_steps in range(1, len(lengths) // num_ranks + 1):
        for pack_of in itertools.product(range(num_steps * num_ranks), repeat=len(lengths)):
            tokens = np.bincount(pack_of, weights=lengths, minlength=num_steps * num_ranks)
            if tokens.min() > 0 and tokens.max() <= 10:
                of_steps = np.bincount(pack_of, weights=costs, minlength=len(tokens)).reshape(num_steps, num_ranks)
                slowest.append(of_steps.max(axis=1).sum())
                worst.append((of_steps.max(axis=1) / of_steps.mean(axis=1)).max())
        if num_steps * num_ranks > 4:
            break
    if slowest:
        assert least_slowest_cost(lengths, costs, 10, num_ranks) <= min(slowest) * (1 + 1e-12)
        assert least_step_imbalance(lengths, costs, 10, num_ranks) <= min(worst) * (1 + 1e-12)


@pytest.mark.parametrize("num_ranks", [8, 64])
@pytest.mark.parametrize("kind", ["lognormal", "bimodal"])
def test_long_tails_are_balanced_close_to_the_bound(rng, num_ranks, kind):
    count = 128 * num_ranks
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
    assert ours.max(axis=1).sum() < 1.07 * least  # at most 1.049 in 420 draws
    assert ours.max(axis=1).sum() < 0.75 * in_order.max(axis=1).sum()
    assert len(ours) <= -(-int(lengths.sum()) // (8192 * num_ranks)) + 1
    assert len(ours) < len(in_order)


def test_ranks_take_turns_with_the_costliest_packs(rng):
    lengths = np.clip(rng.lognormal(7, 1.0, size=2048).astype(np.int64), 1, 8192)
    totals = rank_costs(CostBalancedScheduler(8192, 1, 16).plan(lengths), lengths, PolynomialCost()).sum(axis=0)
    assert totals.max() / totals.mean() < 1.02


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "expected at least one sub-sample in the global batch, found none"),
        ([3, 0, 2], "sub-sample 1 has 0 tokens, expected at least 1"),
        ([3, -5, 2], "sub-sample 1 has -5 tokens, expected at least 1"),
        ([3, 4, 2**63 - 1, 2**63 - 1], f"sub-sample 2 has {2**63 - 1} tokens, but "),
        (np.array([2**64 - 1], dtype=np.uint64), f"sub-sample 0 has {2**64 - 1} tokens, but "),
        ([1.0, 2.0], r"expected the lengths of sub-samples as integers in one dimension, found float64\(2,\)"),
        ([[1, 2]], r"integers in one dimension, found int64\(1, 2\)"),
    ],
)
def test_lengths_that_are_none_are_named(name, lengths, message):
    with pytest.raises(ConfigError, match=message):
        make(name, 8, 1, 2).plan(lengths)


def test_one_that_is_too_long_for_the_largest_group_is_named():
    with pytest.raises(ConfigError) as caught:
        HybridCostBalancedScheduler(9, 1, 6).plan([9, 33])
    assert caught.value.message == "sub-sample 1 has 33 tokens, but the largest group, of 4 ranks of 9, holds 32"
    HybridCostBalancedScheduler(9, 1, 6).plan([9, 32, 9])


@pytest.mark.parametrize(
    ("settings", "count", "packs"),
    [((8, 1, 8, None), 7, 8), ((8, 1, 2, 4), 7, 8), ((8, 2, 4, 2), 1, 8)],
)
def test_too_few_sub_samples_for_all_packs_are_refused(settings, count, packs):
    with pytest.raises(ConfigError) as caught:
        CostBalancedScheduler(*settings).plan([4] * count)
    assert caught.value.message == (
        f"{count} sub-samples of {4 * count} tokens cannot be put into packs of at most {8 * settings[1]} tokens whose "
        f"number is a multiple of {packs}, none of them empty"
    )


def test_what_fits_no_multiple_of_the_packs_is_refused():
    # Nine that need a pack each, for two groups and two microbatches at a time: 12 packs would be needed.
    with pytest.raises(ConfigError, match="9 sub-samples of 54 tokens cannot be put into packs"):
        CostBalancedScheduler(8, 1, 2, 2).plan([6] * 9)
    with pytest.raises(ConfigError, match="1 sub-samples cannot occupy 6 ranks in groups of powers of two"):
        HybridCostBalancedScheduler(8, 1, 6).plan([5])
    with pytest.raises(ConfigError, match=r"cannot occupy 4 ranks .* multiple of 3"):
        HybridCostBalancedScheduler(8, 1, 4, 3).plan([5, 5])


@pytest.mark.parametrize("name", sorted(scheduler_map))
def test_numbers_near_the_end_of_int64(name):
    capacity = 2**58
    plan = make(name, capacity, 1, 4).plan([capacity, capacity, capacity - 1, capacity // 2, 1, 1, 1])
    check(plan, [capacity, capacity, capacity - 1, capacity // 2, 1, 1, 1], (capacity, 1, 4, None))
    with pytest.raises(ConfigError, match=r"8 ranks of \d+ tokens exceed 2\*\*61 tokens"):
        make(name, 2**59, 1, 8)
    with pytest.raises(ConfigError, match=r"9 sub-samples have more than 2\*\*61 tokens"):
        make(name, capacity, 1, 4).plan([capacity] * 9)


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("value", [0, -1, 2.5, "8"])
def test_settings_must_be_positive_integers(name, place, value):
    settings = [8, 1, 2, 1]
    settings[place] = value
    with pytest.raises(ConfigError, match=SETTINGS[place]):
        make(name, *settings)


class FallingCost:
    """A cost model that breaks the rules."""

    def cost(self, lengths, cp_size):
        return 1.0 / lengths


@pytest.mark.parametrize("name", ["cost_balanced", "hybrid_cost_balanced"])
def test_costs_that_fall_with_the_length_are_refused(name):
    with pytest.raises(ConfigError, match="gives costs that are not positive, finite and rising with the length"):
        make(name, 8, 1, 2, cost_model=FallingCost()).plan([1, 2, 3])


def test_schedulers_travel_between_processes():
    for name in scheduler_map:
        scheduler = pickle.loads(pickle.dumps(make(name, 8, 1, 2)))
        assert scheduler.plan([8, 3, 3, 2, 5, 5]) == make(name, 8, 1, 2).plan([8, 3, 3, 2, 5, 5])
