"""Random global batches, and the rules of every plan."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
from hypothesis import strategies as st

from tokenloom import ConfigError, scheduler_map


@st.composite
def batches(draw, *, longest_share=1.0):
    """Draws (settings, lengths), where no length exceeds this share of a pack."""
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
        size = plan.cp_sizes[microbatch, rank]
        ranks = range(rank // size * size, rank // size * size + size)
        assert rank in ranks
        assert len(ranks) == np.count_nonzero(plan.packs[microbatch] == plan.packs[microbatch, rank])
        assert {int(plan.packs[microbatch, other]) for other in ranks} == {int(plan.packs[microbatch, rank])}


def spread(kind, count):
    """Returns the quantiles of a distribution of lengths."""
    at = (np.arange(count) + 0.5) / count
    if kind == "uniform":
        return (1 + at * 40959).astype(np.int64)
    if kind == "lognormal":
        normal = np.array([NormalDist(np.log(4096), 1.0).inv_cdf(each) for each in at])
        return np.clip(np.exp(normal), 1, 40960).astype(np.int64)
    share = 0.1 if kind == "bimodal" else 0.04
    return np.where(at < share, 37888, 1024)


NOT_ENOUGH = "sub-samples can move"
NO_MULTIPLE = "do not fill a multiple of"
NO_GROUPS = "in groups of powers of two"
NO_CUT = "cannot be split into a multiple"
NO_SHARE = "ranks cannot be widened"
TOO_MANY = "a pack has"
REFUSALS = (NOT_ENOUGH, NO_MULTIPLE, NO_GROUPS, NO_CUT, NO_SHARE, TOO_MANY)


def plan_or_refusal(scheduler, lengths):
    """Returns (plan, None), or (None, text of the error)."""
    try:
        return scheduler.plan(lengths), None
    except ConfigError as error:
        return None, next(words for words in REFUSALS if words in error.message)


def make(name, *settings, **options):
    return scheduler_map[name](*settings, **options)


SETTINGS = ("max_seqlen_per_dp_cp_rank", "cp_size", "dp_size", "microbatch_group_size_per_vp_stage")
