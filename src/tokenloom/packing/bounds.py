"""What no plan can beat, whatever it does: how balanced packs can be at most."""

from __future__ import annotations

import numpy as np

from tokenloom.packing.cost import Float64s, Int64s


def least_slowest_cost(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> float:
    """Returns a cost below which the costliest packs of all microbatches together cannot come.

    The t costliest steps take at least what their longest sub-samples cost: of those above half a pack, the s-th step
    (from 0) has one no cheaper than the (s × ranks)-th. They hold at most what the t × ranks costliest packs that the
    cap allows could, and the rest has to be shared evenly, at best. The largest such sum over all t is the bound.

    Args:
        lengths: int64[num_subsamples], longest first.
        costs: int64 or float64[num_subsamples], of the same; rising at least as fast as lengths.
        capacity: tokens of a pack.
        num_ranks: that work side by side.
    """
    total = float(costs.sum())
    most = np.cumsum(_costliest_packs(lengths, costs, capacity))
    first = np.arange(0, len(lengths), num_ranks)
    alone = (lengths[first] > capacity // 2) | (first == 0)
    levels = np.cumsum(np.where(alone, costs[first], 0).astype(np.float64))
    rest = np.maximum(total - most[np.minimum(first + num_ranks, len(lengths)) - 1], 0.0)
    return max(total / num_ranks, float((levels + rest / num_ranks).max()))


def least_step_imbalance(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> float:
    """Returns a ratio below which the worst step, its costliest pack over its mean, cannot come.

    Whichever step has the longest sub-sample: its costliest pack costs that much, and all its packs together at most
    what the costliest packs that the cap allows do. And the worst step is no better than all steps together.
    """
    longest = float(costs[0])
    most = float(_costliest_packs(lengths, costs, capacity)[:num_ranks].sum())
    mean = min(longest, most / num_ranks, float(costs.sum()) / num_ranks)
    together = least_slowest_cost(lengths, costs, capacity, num_ranks) * num_ranks / float(costs.sum())
    return max(1.0, longest / mean, together)


def _costliest_packs(lengths: Int64s, costs: Int64s | Float64s, capacity: int) -> Float64s:
    """Returns, falling, more than packs can cost whose longest sub-samples are different ones.

    No token of a pack costs more than one of its longest sub-sample. Beside one above half a pack, none costs more than
    one of the longest that still fits.
    """
    per_token = costs / lengths.astype(np.float64)
    room = capacity - lengths
    beside = np.searchsorted(-lengths, -room)  # the longest that fits beside each
    rate = np.append(per_token, 0.0)[np.where(lengths > capacity // 2, beside, np.arange(len(lengths)))]
    packs: Float64s = np.sort(costs + room * rate)[::-1]
    return packs
