"""Context-parallel groups as large as each sub-sample needs: long ones are shared by ranks, short ones stay whole."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import GOOD_ENOUGH, Task, checked_costs, in_units, pack_to_levels, unit_exponent
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.plan import Int64s, PackPlan, plan_of, stable_order

WIDENINGS = (float("inf"), 16.0, 8.0, 4.0, 2.0, 1.0)
"""Ways to limit what a rank of a group may cost: so many times the most that a rank on its own can."""


@dataclass(slots=True)
class Group:
    """A sub-sample and the ranks that share it."""

    number: int
    size: int
    cost: int


@dataclass(slots=True)
class Step:
    """The groups of one microbatch."""

    groups: list[Group] = field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        """Ranks of all groups."""
        return sum(group.size for group in self.groups)

    @property
    def level(self) -> int:
        """Cost of the slowest rank of all groups."""
        return max((group.cost for group in self.groups), default=0)

    @property
    def base(self) -> int:
        """Cost of the ranks of all groups."""
        return sum(group.size * group.cost for group in self.groups)


class HybridCostBalancedScheduler(BasePackingScheduler):
    """Plans packs of equal cost with context-parallel groups of different sizes, chosen anew for each microbatch.

    A sub-sample that fits one rank stays whole, in a pack of one rank. A longer one is a pack of its own, shared by as
    many ranks as it needs, a power of two: n tokens need s ranks when n, rounded up to a multiple of 2 × s, is at most
    s × `max_seqlen_per_dp_cp_rank`. A group gets twice as many ranks, and again, where that shortens the whole batch:
    the ranks of a few giants would else be waited for by all others. Where there are fewer sub-samples than ranks,
    every one gets a group of its own, and groups grow until no rank is left over.

    Groups are aligned blocks, [i × s, (i + 1) × s), so all that can occur are known beforehand: one communicator for
    each size and block.

    Example:
        >>> plan = HybridCostBalancedScheduler(8, cp_size=1, dp_size=4).plan([16, 8, 7, 1])
        >>> plan.assignments, plan.cp_sizes.tolist()
        ((((0,), (0,), (1,), (2, 3)),), [[2, 2, 1, 1]])

    The settings are those of `BasePackingScheduler`; groups are formed among all dp × cp ranks.
    """

    is_dynamic_cp = True

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The numbers of ranks that a group can have, smallest first."""
        return tuple(2**k for k in range(self.num_ranks.bit_length()))

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sub-sample that can be planned."""
        return max(size * self.tokens_per_rank(size) for size in (1, self.group_sizes[-1]))

    def _limit(self) -> str:
        return (
            f"but the largest group, of {self.group_sizes[-1]} ranks of {self.max_seqlen_per_dp_cp_rank}, holds "
            f"{self.max_tokens}"
        )

    def tokens_per_rank(self, size: int) -> int:
        """Returns what a rank holds at most of a sub-sample that is cut into two chunks for each rank."""
        return self.max_seqlen_per_dp_cp_rank if size == 1 else self.max_seqlen_per_dp_cp_rank // 2 * 2

    def _plan(self, lengths: Int64s) -> PackPlan:
        order = stable_order(int(lengths.max()) - lengths)
        batch = _Batch(self, lengths[order])
        steps, pack_of_short = batch.groups_and_packs() or (batch.groups_only(), np.empty(0, dtype=np.int64))
        return _lay_out(steps, pack_of_short, order, self.num_ranks)


class _Batch:
    """The sub-samples of one global batch, longest first: those that need several ranks, then those that need one."""

    def __init__(self, scheduler: HybridCostBalancedScheduler, lengths: Int64s) -> None:
        self.lengths = lengths
        self.capacity = scheduler.max_seqlen_per_dp_cp_rank
        self.num_ranks = scheduler.num_ranks
        self.multiple = scheduler.microbatch_multiple
        self.sizes = scheduler.group_sizes
        self.model = scheduler.cost_model
        largest = max(size * float(self.model.cost(lengths[:1], size)[0]) for size in self.sizes)
        self.exponent = unit_exponent(largest, len(lengths))
        self.costs = self._costs(lengths, 1)
        self.needs = np.ones(len(lengths), dtype=np.int64)
        for size in self.sizes[:-1]:
            self.needs[lengths > size * scheduler.tokens_per_rank(size)] = 2 * size
        self.num_long = int(np.count_nonzero(self.needs > 1))
        self.room = scheduler.room_of(lengths[self.num_long :], self.capacity)

    def _costs(self, lengths: Int64s, size: int) -> Int64s:
        return in_units(checked_costs(self.model, lengths, size), self.exponent) if len(lengths) else lengths

    # --- long ones in groups, short ones in packs ------------------------------------------------------------------

    def groups_and_packs(self) -> tuple[list[Step], Int64s] | None:
        """Returns the groups of each step and the packs of the short ones; None if they cannot occupy all ranks."""
        short = Task(
            lengths=self.room,
            costs=self.costs[self.num_long :],
            capacity=self.capacity,
            num_ranks=self.num_ranks,
        )
        candidates = self._widened(short)
        estimates = [self._estimate(steps, short) for steps in candidates]
        # The first that is good enough, as wider groups leave memory empty; then the others, best first.
        poor = [estimate > GOOD_ENOUGH * min(estimates) for estimate in estimates]
        order = sorted(range(len(candidates)), key=lambda i: (poor[i], estimates[i] if poor[i] else i))
        candidates = [candidates[i] for i in order]
        return next((found for steps in candidates if (found := self._pack_beside(steps, short)) is not None), None)

    def _pack_beside(self, steps: list[Step], short: Task) -> tuple[list[Step], Int64s] | None:
        """Returns the steps, with as many more as the short ones take, and the packs of these; None as above."""
        taken = sum(step.num_ranks for step in steps)
        needed = max(len(steps), -(-(taken + -(-int(short.lengths.sum()) // self.capacity)) // self.num_ranks))
        num_steps = -(-needed // self.multiple) * self.multiple
        while True:
            padded = [*steps, *(Step() for _ in range(num_steps - len(steps)))]
            missing = sum(self.num_ranks - step.num_ranks for step in padded) - len(short.lengths)
            if missing > 0 and not self._grow(padded, missing):
                return None
            padded.sort(key=lambda step: -step.level)
            widths = np.array([self.num_ranks - step.num_ranks for step in padded], dtype=np.int64)
            pack_of = pack_to_levels(
                short,
                widths=widths,
                levels=np.array([step.level for step in padded], dtype=np.int64),
                bases=np.array([step.base for step in padded], dtype=np.int64),
            )
            if pack_of is not None:
                return padded, pack_of
            num_steps += self.multiple

    def _widened(self, short: Task) -> list[list[Step]]:
        """Returns the steps of the long ones for each way to limit what a rank of a group may cost."""
        if not self.num_long:
            return [[]]
        lengths, needs = self.lengths[: self.num_long], self.needs[: self.num_long]
        table = np.stack([self._costs(lengths, size) for size in self.sizes])
        full = int(self._costs(np.array([self.capacity], dtype=np.int64), 1)[0])
        possible = np.array(self.sizes)[:, None] >= needs
        least = np.argmin(np.where(possible, table, np.iinfo(np.int64).max), axis=0)
        found = []
        for limit in WIDENINGS:
            within = possible & (table <= limit * full)
            chosen = np.where(within.any(axis=0), np.argmax(within, axis=0), least)
            costs = table[chosen, np.arange(self.num_long)]
            order = np.lexsort((np.arange(self.num_long), -chosen, -costs))
            groups = [Group(int(i), self.sizes[int(chosen[i])], int(costs[i])) for i in order]
            found.append(_first_fit(groups, self.num_ranks))
        return found

    def _estimate(self, steps: Sequence[Step], short: Task) -> float:
        """Returns about what the slowest ranks of all microbatches will cost: groups first, then an even spread."""
        if not len(short.lengths):
            return float(sum(step.level for step in steps))
        total = float(short.costs.sum())
        full = total * self.capacity / float(short.lengths.sum())
        beside = sum((self.num_ranks - step.num_ranks) * min(float(step.level), full) for step in steps)
        return sum(step.level for step in steps) + max(0.0, total - beside) / self.num_ranks

    def _grow(self, steps: Sequence[Step], missing: int) -> bool:
        """Doubles the costliest groups until they occupy so many more ranks, or a little more; False if they cannot."""
        heap = [(-group.cost, i, j) for i, step in enumerate(steps) for j, group in enumerate(step.groups)]
        heapq.heapify(heap)
        while missing > 0 and heap:
            _, i, j = heapq.heappop(heap)
            group = steps[i].groups[j]
            if group.size <= self.num_ranks - steps[i].num_ranks and 2 * group.size <= self.sizes[-1]:
                missing -= group.size
                group.size *= 2
                group.cost = int(self._costs(self.lengths[group.number : group.number + 1], group.size)[0])
                heapq.heappush(heap, (-group.cost, i, j))
        return missing <= 0

    # --- fewer sub-samples than ranks ------------------------------------------------------------------------------

    def groups_only(self) -> list[Step]:
        """Returns steps in which every sub-sample has a group of its own and all ranks are in one.

        Raises:
            ConfigError: there are too few sub-samples, or powers of two do not add up to the ranks.
        """
        num_steps = -(-int(self.needs.sum()) // self.num_ranks)
        num_steps = -(-num_steps // self.multiple) * self.multiple
        while num_steps <= len(self.lengths):
            steps = self._spread(num_steps)
            if steps is not None and all(self._grow([step], self.num_ranks - step.num_ranks) for step in steps):
                return sorted(steps, key=lambda step: -step.level)
            num_steps += self.multiple
        message = (
            f"{len(self.lengths)} sub-samples cannot occupy {self.num_ranks} ranks in groups of powers of two, in a "
            f"number of microbatches that is a multiple of {self.multiple}"
        )
        raise ConfigError(message, hint="take more sub-samples into a global batch")

    def _spread(self, num_steps: int) -> list[Step] | None:
        """Returns every sub-sample in the step with the most ranks left; None if one does not fit there."""
        steps = [Step() for _ in range(num_steps)]
        heap = [(0, i) for i in range(num_steps)]
        for number, size in enumerate(self.needs.tolist()):
            taken, i = heapq.heappop(heap)
            if taken + size > self.num_ranks:
                return None
            cost = int(self._costs(self.lengths[number : number + 1], size)[0])
            steps[i].groups.append(Group(number, size, cost))
            heapq.heappush(heap, (taken + size, i))
        return steps


def _first_fit(groups: Sequence[Group], num_ranks: int) -> list[Step]:
    """Returns steps, each group in the first that has enough ranks left."""
    steps: list[Step] = []
    left: list[int] = []
    first: dict[int, int] = {}  # before it, no step has room for a group of that size
    for group in groups:
        i = first.get(group.size, 0)
        while i < len(left) and left[i] < group.size:
            i += 1
        first[group.size] = i
        if i == len(left):
            steps.append(Step())
            left.append(num_ranks)
        steps[i].groups.append(group)
        left[i] -= group.size
    return steps


def _lay_out(steps: Sequence[Step], pack_of_short: Int64s, order: Int64s, num_ranks: int) -> PackPlan:
    """Returns the plan: in each microbatch the largest groups first, which aligns them, then ranks on their own.

    Args:
        steps: the groups of each microbatch, sub-samples as positions in `order`.
        pack_of_short: int64[num_short], packs of one rank, numbered by microbatch, of the last ones in `order`.
        order: int64[num_subsamples], sub-samples, longest first.
        num_ranks: number of ranks of a microbatch.
    """
    num_groups = sum(len(step.groups) for step in steps)
    pack_of = np.empty_like(order)
    pack_of[order[len(order) - len(pack_of_short) :]] = pack_of_short + num_groups
    packs = np.empty((len(steps), num_ranks), dtype=np.int64)
    cp_sizes = np.ones_like(packs)
    group_number, pack_number = 0, num_groups
    for microbatch, step in enumerate(steps):
        rank = 0
        for group in sorted(step.groups, key=lambda group: -group.size):
            packs[microbatch, rank : rank + group.size] = group_number
            cp_sizes[microbatch, rank : rank + group.size] = group.size
            pack_of[order[group.number]] = group_number
            group_number += 1
            rank += group.size
        packs[microbatch, rank:] = np.arange(pack_number, pack_number + num_ranks - rank)
        pack_number += num_ranks - rank
    return plan_of(pack_of, packs, cp_sizes)
