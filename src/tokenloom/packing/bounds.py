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
    most = np.cumsum(np.sort(np.append(_costliest_packs(lengths, costs, capacity), shared))[::-1])
    longest = costs[: max(_num_alone(lengths, capacity), 1)]
    alone = np.sort(np.append(longest, shared))[::-1][::num_ranks].astype(np.float64)
    held = most[np.minimum(np.arange(1, len(alone) + 1) * num_ranks, len(most)) - 1]
    rest = np.maximum(total - held, 0.0)
    return max(total / num_ranks, float((np.cumsum(alone) + rest / num_ranks).max()))


def least_step_imbalance(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> float:
    """Returns a ratio below which the worst step, its costliest pack over its mean, cannot come.

    No better than any t costliest steps together (`least_imbalance_of_costliest`), nor than all steps together
    (`least_slowest_cost`), nor than long sub-samples that do not divide evenly among steps allow.
    """
    of_costliest = least_imbalance_of_costliest(lengths, costs, capacity, num_ranks)
    together = least_slowest_cost(lengths, costs, capacity, num_ranks) * num_ranks / float(costs.sum())
    return max(1.0, float(of_costliest.max()), together, _least_imbalance_at_cliff(lengths, costs, capacity, num_ranks))


def least_imbalance_of_costliest(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> Float64s:
    """Returns ratios: what the costliest packs of the t + 1 costliest steps cost together, over their means, at least.

    For as many steps as those above half a pack take, one at least: each such sub-sample has a pack of its own, so the
    s-th step (from 0) has one no cheaper than the (s × ranks)-th; and t steps hold at most what the t × ranks costliest
    packs that the cap allows could. The parameters are those of `least_slowest_cost`.
    """
    most = np.cumsum(np.sort(_costliest_packs(lengths, costs, capacity))[::-1])
    first = np.arange(0, max(_num_alone(lengths, capacity), 1), num_ranks)
    levels = np.cumsum(costs[first].astype(np.float64))
    held = np.minimum(most[np.minimum(first + num_ranks, len(lengths)) - 1], float(costs.sum()))
    ratios: Float64s = np.maximum(levels * num_ranks / held, 1.0)
    return ratios


def _least_imbalance_at_cliff(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> float:
    """Returns a ratio below which the step with the fewest of the longest sub-samples cannot come.

    The g longest, if above half a pack, have packs of their own in n = ⌈g / ranks⌉ steps or more, so one of these has
    ⌊g / n⌋ of them at most. Its other packs cost no more than one without any of them can. The worst over all g.
    """
    count = np.arange(1, _num_alone(lengths, capacity) + 1)
    fewest = count // -(-count // num_ranks)
    packs = np.append(_costliest_packs(lengths, costs, capacity), 0.0)
    without = np.maximum.accumulate(packs[::-1])[::-1][count]
    cheap = np.minimum(without / costs[count - 1], 1.0)
    return float((num_ranks / (fewest + (num_ranks - fewest) * cheap)).max(initial=1.0))


def _num_alone(lengths: Int64s, capacity: int) -> int:
    """Returns how many sub-samples are above half a pack, so that no two share one."""
    return int(np.count_nonzero(lengths > capacity // 2))


def _costliest_packs(lengths: Int64s, costs: Int64s | Float64s, capacity: int) -> Float64s:
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
