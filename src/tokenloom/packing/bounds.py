"""What no plan can beat, whatever it does: how balanced packs can be at most."""

from __future__ import annotations

import numpy as np

from tokenloom.packing.cost import Float64s, Int64s

_NONE: Float64s = np.empty(0)


def least_slowest_cost(
    lengths: Int64s,
    costs: Int64s | Float64s,
    capacity: int,
    num_ranks: int,
    *,
    shared: Int64s | Float64s = _NONE,
) -> float:
    """Returns a cost below which the costliest packs of all microbatches together cannot come.

    The t costliest steps take at least what those cost that have a pack of their own, as above half a pack: the s-th
    step (from 0) has one no cheaper than the (s × ranks)-th. They hold at most what the t × ranks costliest packs that
    the cap allows could, and the rest has to be shared evenly, at best. The largest such sum over all t is the bound.

    Args:
        lengths: int64[num_subsamples], longest first.
        costs: int64 or float64[num_subsamples], of the same; rising at least as fast as lengths.
        capacity: tokens of a pack.
        num_ranks: number of ranks that work side by side.
        shared: int64 or float64[n], costs of ranks that have no pack, but part of a sub-sample that several share.
    """
    total = float(costs.sum()) + float(shared.sum())
    most = np.cumsum(np.sort(np.append(costliest_packs(lengths, costs, capacity), shared))[::-1])
    longest = costs[: max(num_alone(lengths, capacity), 1)]
    alone = np.sort(np.append(longest, shared))[::-1][::num_ranks].astype(np.float64)
    held = most[np.minimum(np.arange(1, len(alone) + 1) * num_ranks, len(most)) - 1]
    rest = np.maximum(total - held, 0.0)
    return max(total / num_ranks, float((np.cumsum(alone) + rest / num_ranks).max()))


def num_alone(lengths: Int64s, capacity: int) -> int:
    """Returns how many sub-samples are above half a pack, so that no two share one."""
    return int(np.count_nonzero(lengths > capacity // 2))


def costliest_packs(lengths: Int64s, costs: Int64s | Float64s, capacity: int) -> Float64s:
    """Returns, for each sub-sample, no less than a pack can cost of which it is the longest.

    No token of a pack costs more than one of its longest sub-sample. Beside one above half a pack, none costs more than
    one of the longest that still fits.
    """
    per_token = costs / lengths.astype(np.float64)
    room = capacity - lengths
    beside = np.searchsorted(-lengths, -room)  # the longest that fits beside each
    rate = np.append(per_token, 0.0)[np.where(lengths > capacity // 2, beside, np.arange(len(lengths)))]
    packs: Float64s = costs + room * rate
    return packs
