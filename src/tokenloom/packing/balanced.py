"""`CostBalancedScheduler`: packs of nearly equal cost, so that no rank waits long for another rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.kernels import packs
from tokenloom.packing.base_scheduler import BasePackingScheduler
from tokenloom.packing.cost import CostModel, Float64s, least_slowest_cost
from tokenloom.packing.pack_plan import Int64s, PackPlan, stable_order, uniform_plan

GOOD_ENOUGH = 1.05
"""If a plan costs more than this factor times a lower bound, a plan with more microbatches is tried."""


class CostBalancedScheduler(BasePackingScheduler):
    """A scheduler that plans packs of nearly equal cost, so that all ranks take nearly the same time.

    The scheduler first plans with the fewest possible microbatches. If this plan costs more than 1.05 times a lower
    bound, more microbatches are also tried. (Megatron's `dp_balanced` packs in the given order, regardless of cost.)

    Example:
        >>> scheduler = CostBalancedScheduler(8, cp_size=1, dp_size=2)
        >>> scheduler.plan([8, 3, 3, 2, 8, 1, 4, 3]).assignments
        (((0,), (4,)), ((2, 3, 7), (1, 5, 6)))

    The arguments are the same as in `BasePackingScheduler`.
    """

    def _plan(self, lengths: Int64s) -> PackPlan:
        order = stable_order(int(lengths.max()) - lengths)
        task = Task(
            lengths=lengths[order],
            costs=integer_costs(checked_costs(self.cost_model, lengths[order], self.cp_size), len(lengths)),
            capacity=self.max_tokens,
            most_items=self.max_num_seqs or len(lengths),
            num_ranks=self.dp_size,
        )
        packing = self._fewest_microbatches(task)
        pack_of = np.empty_like(packing.pack_of)
        pack_of[order] = reverse_odd_microbatches(packing.pack_of, self.dp_size)
        return uniform_plan(
            pack_of, num_microbatches=packing.num_microbatches, cp_size=self.cp_size, dp_size=self.dp_size
        )

    def _fewest_microbatches(self, task: Task) -> Packing:
        """Returns a packing with the fewest possible microbatches, or with more if the fewest cost over 5 % more."""
        fewest = least_microbatches(task, self.microbatch_multiple)
        best: Packing | None = None
        for num_microbatches in range(fewest, len(task.lengths) // self.dp_size + 1, self.microbatch_multiple):
            found = task.pack(num_microbatches)
            if found is None:
                continue
            if best is not None:
                return found if found.slowest * GOOD_ENOUGH < best.slowest else best
            if task.is_balanced(found):
                return found
            best = found
        if best is not None:
            return best
        packs = self.dp_size * self.microbatch_multiple
        limit = f"{task.capacity} tokens" + (f" and {self.max_num_seqs} sub-samples" if self.max_num_seqs else "")
        batch = f"{len(task.lengths)} sub-samples with {int(task.lengths.sum())} tokens in total"
        message = f"{batch} cannot fill a multiple of {packs} packs, each of at most {limit}"
        raise ConfigError(message, hint="change the number of sub-samples, or increase `max_seqlen_per_dp_cp_rank`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The pack of each sub-sample: `pack_of[i]` is m × num_ranks + r if rank r has sub-sample i in microbatch m.

    `slowest` is the cost of the costliest pack of each microbatch, summed over all microbatches.
    """

    num_microbatches: int
    pack_of: Int64s
    slowest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The sub-samples to pack, longest first, and the limits of a pack: `capacity` tokens, `most_items` sub-samples."""

    lengths: Int64s
    costs: Int64s
    capacity: int
    most_items: int
    num_ranks: int

    def pack(self, num_microbatches: int) -> Packing | None:
        """Packs all sub-samples into `num_microbatches` × `num_ranks` packs; returns None if sub-samples do not fit."""
        widths = np.full(num_microbatches, self.num_ranks, dtype=np.int64)
        nothing = np.zeros_like(widths)
        pack_of = pack_to_levels(self, widths=widths, levels=nothing, bases=nothing)
        if pack_of is None:
            return None
        costs = np.zeros(num_microbatches * self.num_ranks, dtype=np.int64)
        np.add.at(costs, pack_of, self.costs)
        slowest = int(costs.reshape(num_microbatches, self.num_ranks).max(axis=1).sum())
        return Packing(num_microbatches=num_microbatches, pack_of=pack_of, slowest=slowest)

    def is_balanced(self, packing: Packing) -> bool:
        """Returns whether `packing.slowest` is at most `GOOD_ENOUGH` times a lower bound for every packing."""
        acceptable = packing.slowest / GOOD_ENOUGH
        if acceptable <= int(self.costs.sum()) / self.num_ranks:
            return True
        return acceptable <= least_slowest_cost(self.lengths, self.costs, self.capacity, self.num_ranks)


def pack_to_levels(task: Task, *, widths: Int64s, levels: Int64s, bases: Int64s) -> Int64s | None:
    """Returns the index of the pack of each sub-sample, int64[num_subsamples]; None if the sub-samples do not fit.

    Balances costs; lengths if packs overflow. For `widths`, `levels` and `bases`, see `kernels.packs.pack_to_levels`.
    """
    first = range(5) if task.most_items < len(task.lengths) else range(1)
    for by_length, short_first in ((False, 0), *((True, quarters) for quarters in first)):
        pack_of = packs.pack_to_levels(
            task.lengths,
            task.costs,
            capacity=task.capacity,
            most_items=task.most_items,
            widths=widths,
            levels=levels,
            bases=bases,
            num_ranks=task.num_ranks,
            by_length=by_length,
            short_first=short_first,
        )
        if pack_of is not None:
            return pack_of
    return None


def least_microbatches(task: Task, multiple: int) -> int:
    """Returns a lower bound of the number of microbatches that `task` needs, rounded up to a multiple of `multiple`."""
    tokens = -(-int(task.lengths.sum()) // task.capacity)
    alone = int(np.count_nonzero(task.lengths > task.capacity // 2))
    shortest = np.cumsum(task.lengths[::-1])
    room = task.capacity - task.lengths[:alone]
    beside = np.minimum(np.searchsorted(shortest, room, side="right"), task.most_items - 1)
    fitting = min(int(beside.sum()), int(np.searchsorted(shortest, room.sum(), side="right")))
    left = len(task.lengths) - alone - fitting
    packs = max(tokens, alone + max(-(-left // task.most_items), 0))
    return -(-packs // (task.num_ranks * multiple)) * multiple


def checked_costs(model: CostModel, lengths: Int64s, cp_size: int) -> Float64s:
    """Returns the validated cost of each sub-sample, float64[n]; `lengths` must be sorted, longest first."""
    costs = np.asarray(model.cost(lengths, cp_size), dtype=np.float64)
    if costs.shape != lengths.shape or not (np.isfinite(costs).all() and costs[-1] > 0 and (np.diff(costs) <= 0).all()):
        raise ConfigError(f"{model!r}: costs must be positive and finite, and must not decrease with the length")
    return costs


def integer_costs(costs: Float64s, count: int) -> Int64s:
    """Scales costs (sorted, largest first) to integers, so that the sum of any `count` integers is below 2**61."""
    return scaled_costs(costs, cost_exponent(float(costs[0]), count))


def cost_exponent(largest: float, count: int) -> int:
    """Returns the exponent for `scaled_costs` that keeps the sum of `count` costs, each <= `largest`, below 2**61."""
    return 61 - int(np.frexp(largest)[1]) - count.bit_length()


def scaled_costs(costs: Float64s, exponent: int) -> Int64s:
    """Returns costs × 2**exponent, rounded down; the result is the same on every CPU."""
    return np.ldexp(costs, exponent).astype(np.int64)


def reverse_odd_microbatches(pack_of: Int64s, num_ranks: int) -> Int64s:
    """Reverses the order of packs in every second microbatch, so that no rank always has the costliest pack."""
    microbatch, place = np.divmod(pack_of, num_ranks)
    return np.where(microbatch % 2 == 1, microbatch * num_ranks + (num_ranks - 1 - place), pack_of)
