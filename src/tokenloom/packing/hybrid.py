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
from tokenloom.packing.sharing import SharedBatch, Sharing

LEAST_JOINED = 128
"""Sub-samples that cost less than one part in so many of their step join no group."""

MOST_JOINED = 8
"""The most sub-samples of a group."""

MOST_TRIED = 4
"""How many ways to share are planned in full at most; one is enough for most batches."""


@dataclass(slots=True)
class Group:
    """Sub-samples and the ranks that share them."""

    numbers: list[int]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Sub-samples in groups, and the whole ones in packs of one rank; and the costs of the slowest ranks, added up."""

    steps: list[Step]
    whole: Int64s
    pack_of_whole: Int64s
    slowest: int


class Free:
    """Which numbers of a range are still there."""

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._next = list(range(stop + 1))  # itself, or a number behind it once it is taken

    def at_or_behind(self, number: int) -> int:
        """Returns the first that is still there; the end of the range if none is."""
        number = max(number, self._start)
        while (behind := self._next[number]) != number:
            self._next[number] = self._next[behind]
            number = behind
        return number

    def take(self, number: int) -> None:
        """Takes one away."""
        self._next[number] = number + 1

    def left(self) -> Int64s:
        """Returns those that are still there."""
        numbers: Int64s = np.arange(self._start, len(self._next) - 1)
        left: Int64s = numbers[np.array(self._next[self._start : -1], dtype=np.int64) == numbers]
        return left


class HybridCostBalancedScheduler(BasePackingScheduler):
    """Plans packs of equal cost with context-parallel groups of different sizes, chosen anew for each microbatch.

    Short sub-samples stay whole, in packs of one rank. A longer one is shared by as many ranks as it needs, a power of
    two: n tokens need s ranks when n, rounded up to a multiple of 2 × s, is at most s × `max_seqlen_per_dp_cp_rank`. It
    gets more, and so do some that one rank could hold, where all ranks would else wait for them: `sharing.py` says how
    that is chosen. Where that leaves a group cheaper than its step, short ones join it. Where there are fewer
    sub-samples than ranks, every one gets a group of its own, and groups grow until no rank is left over.

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
        return lay_out(batch.groups_and_packs() or batch.groups_only(), order, self.num_ranks)


class _Batch:
    """The sub-samples of one global batch, longest first: those that groups share, then those in packs of one rank."""

    def __init__(self, scheduler: HybridCostBalancedScheduler, lengths: Int64s) -> None:
        self.scheduler = scheduler
        self.lengths = lengths
        self.capacity = scheduler.max_seqlen_per_dp_cp_rank
        self.num_ranks = scheduler.num_ranks
        self.multiple = scheduler.microbatch_multiple
        self.sizes = scheduler.group_sizes
        self.model = scheduler.cost_model
        largest = max(size * float(self.model.cost(lengths[:1], size)[0]) for size in self.sizes)
        self.exponent = unit_exponent(largest, len(lengths))
        self.needs = np.ones(len(lengths), dtype=np.int64)
        for size in self.sizes[:-1]:
            self.needs[lengths > size * scheduler.tokens_per_rank(size)] = 2 * size
        self._known_costs: dict[int, Int64s] = {}
        self._known_rising: dict[int, tuple[Int64s, Int64s]] = {}

    def _costs(self, lengths: Int64s, size: int) -> Int64s:
        return in_units(checked_costs(self.model, lengths, size), self.exponent) if len(lengths) else lengths

    def _costs_of_first(self, size: int, count: int) -> Int64s:
        """Returns int64[count], what the longest sub-samples cost each of so many ranks."""
        known = self._known_costs.get(size)
        if known is None or len(known) < count:
            known = self._known_costs[size] = self._costs(self.lengths[:count], size)
        return known[:count]

    # --- long ones in groups, short ones in packs ------------------------------------------------------------------

    def groups_and_packs(self) -> Placed | None:
        """Returns the groups of each step and the packs of the short ones; None if they cannot occupy all ranks."""
        batch = SharedBatch(
            lengths=self.lengths,
            needs=self.needs,
            costs=self._costs_of_first,
            group_sizes=self.sizes if self.capacity > 1 else (1,),
            capacity=self.capacity,
            full=int(self._costs(np.minimum(self.lengths[:1], self.capacity), 1)[0]),
            num_ranks=self.num_ranks,
        )
        tried: list[Placed] = []
        for way in batch.promising_first():
            placed = self._pack_beside(way, fills=bool((way.sizes > self.needs[way.numbers]).any()))
            if placed is None:
                continue
            tried.append(placed)
            if placed.slowest <= GOOD_ENOUGH * batch.even_share(way) or len(tried) == MOST_TRIED:
                break
        return min(tried, key=lambda placed: placed.slowest, default=None)

    def _pack_beside(self, way: Sharing, *, fills: bool) -> Placed | None:
        """Returns the steps, with as many more as the short ones take, and the packs of these; None as above.

        With `fills`, short ones join groups that cost less than their step.
        """
        num_shared, num_all = len(way.sizes), len(self.lengths)
        costs = self._costs_of_first(1, num_all)
        most = self.scheduler.max_num_seqs or num_all
        taken = int(way.sizes.sum())
        packs = max(-(-int(self.lengths[num_shared:].sum()) // self.capacity), -(-(num_all - num_shared) // most))
        least = -(-(taken + packs) // self.num_ranks)
        best: Placed | None = None
        num_steps = -(-least // self.multiple) * self.multiple
        while True:
            steps = first_fit(groups_of(way), self.num_ranks)
            num_steps = max(num_steps, -(-len(steps) // self.multiple) * self.multiple)
            steps += [Step() for _ in range(num_steps - len(steps))]
            spare = num_all - num_shared - (self.num_ranks * num_steps - taken)
            if spare < 0 and not self._grow(steps, -spare):
                return best
            steps = self._costliest_first(steps, num_shared)
            whole = self._fill(steps, num_shared, spare) if fills else np.arange(num_shared, num_all)
            short = Task(
                lengths=self.lengths[whole],
                costs=costs[whole],
                capacity=self.capacity,
                most_items=most,
                num_ranks=self.num_ranks,
            )
            found = packs_beside(steps, short, whole)
            if best is not None and found is not None:
                return found if found.slowest * GOOD_ENOUGH < best.slowest else best
            if found is not None and found.slowest <= GOOD_ENOUGH * way.least:
                return found
            best = found
            num_steps += self.multiple

    def _costliest_first(self, steps: Sequence[Step], num_shared: int) -> list[Step]:
        """Returns the steps by what their groups cost, or the longest that will be alone there if there are none."""
        costs = self._costs_of_first(1, len(self.lengths))[num_shared:]
        alone = costs[self.lengths[num_shared:] > self.capacity // 2][:: self.num_ranks].tolist()
        empty = [step for step in steps if not step.groups]
        levels = [(step.level, step) for step in steps if step.groups]
        levels += zip((alone + [0] * len(empty))[: len(empty)], empty, strict=True)
        return [step for _, step in sorted(levels, key=lambda one: -one[0])]

    def _rising(self, size: int) -> tuple[Int64s, Int64s]:
        """Returns int64[num_subsamples] twice, below zero: costs, and tokens with padding, with so many ranks."""
        known = self._known_rising.get(size)
        if known is None:
            padded = -(-self.lengths // (2 * size)) * (2 * size)
            known = self._known_rising[size] = (-self._costs_of_first(size, len(self.lengths)), -padded)
        return known

    def _fill(self, steps: Sequence[Step], num_shared: int, most: int) -> Int64s:
        """Puts at most `most` short ones, longest first, into groups cheaper than their step; returns the others."""
        free = Free(num_shared, len(self.lengths))
        for step in steps:
            level = step.level
            least = level // LEAST_JOINED
            for group in step.groups:
                costs, tokens = self._rising(group.size)
                if level - group.cost <= least or most <= 0 or -costs[num_shared] <= least:
                    continue
                room = group.size * self.scheduler.tokens_per_rank(group.size) + int(tokens[group.numbers].sum())
                while most > 0 and len(group.numbers) < (self.scheduler.max_num_seqs or MOST_JOINED):
                    first = max(costs.searchsorted(group.cost - level), tokens.searchsorted(-room))
                    number = free.at_or_behind(int(first))
                    if number == len(self.lengths) or -costs[number] <= least:
                        break
                    free.take(number)
                    group.numbers.append(number)
                    group.cost -= int(costs[number])
                    room += int(tokens[number])
                    most -= 1
        return free.left()

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
                first = group.numbers[0]
                group.cost = int(self._costs(self.lengths[first : first + 1], group.size)[0])
                heapq.heappush(heap, (-group.cost, i, j))
        return missing <= 0

    # --- fewer sub-samples than ranks ------------------------------------------------------------------------------

    def groups_only(self) -> Placed:
        """Returns steps in which every sub-sample has a group of its own and all ranks are in one."""
        num_steps = -(-int(self.needs.sum()) // self.num_ranks)
        num_steps = -(-num_steps // self.multiple) * self.multiple
        while num_steps <= len(self.lengths):
            steps = self._spread(num_steps)
            if steps is not None and all(self._grow([step], self.num_ranks - step.num_ranks) for step in steps):
                nothing = np.empty(0, dtype=np.int64)
                steps.sort(key=lambda step: -step.level)
                return Placed(steps=steps, whole=nothing, pack_of_whole=nothing, slowest=0)
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
            steps[i].groups.append(Group([number], size, cost))
            heapq.heappush(heap, (taken + size, i))
        return steps


def packs_beside(steps: list[Step], short: Task, whole: Int64s) -> Placed | None:
    """Returns the short ones in packs on the ranks that groups leave; None if they do not fit."""
    widths = np.array([short.num_ranks - step.num_ranks for step in steps], dtype=np.int64)
    levels = np.array([step.level for step in steps], dtype=np.int64)
    bases = np.array([step.base for step in steps], dtype=np.int64)
    pack_of = pack_to_levels(short, widths=widths, levels=levels, bases=bases)
    if pack_of is None:
        return None
    costs = np.zeros(int(widths.sum()), dtype=np.int64)
    np.add.at(costs, pack_of, short.costs)
    np.maximum.at(levels, np.repeat(np.arange(len(steps)), widths), costs)
    return Placed(steps=steps, whole=whole, pack_of_whole=pack_of, slowest=int(levels.sum()))


def groups_of(way: Sharing) -> list[Group]:
    """Returns a group for each sub-sample that is shared."""
    rows = zip(way.numbers.tolist(), way.sizes.tolist(), way.costs.tolist(), strict=True)
    return [Group([number], size, cost) for number, size, cost in rows]


def first_fit(groups: Sequence[Group], num_ranks: int) -> list[Step]:
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


def lay_out(placed: Placed, order: Int64s, num_ranks: int) -> PackPlan:
    """Returns the plan: in each microbatch the largest groups first, which aligns them, then ranks on their own.

    Sub-samples of `placed` are positions in `order`: int64[num_subsamples], longest first.
    """
    rows = [sorted(step.groups, key=lambda group: -group.size) for step in placed.steps]
    groups = [group for row in rows for group in row]
    sizes = np.array([group.size for group in groups], dtype=np.int64)
    pack_of = np.empty_like(order)
    pack_of[order[placed.whole]] = placed.pack_of_whole + len(groups)
    joined = np.array([number for group in groups for number in group.numbers], dtype=np.int64)
    pack_of[order[joined]] = np.repeat(np.arange(len(groups)), [len(group.numbers) for group in groups])
    packs = np.empty((len(rows), num_ranks), dtype=np.int64)
    cp_sizes = np.ones_like(packs)
    group_number, pack_number = 0, len(groups)
    for microbatch, row in enumerate(rows):
        row_sizes = sizes[group_number : group_number + len(row)]
        taken = int(row_sizes.sum())
        packs[microbatch, :taken] = np.repeat(np.arange(group_number, group_number + len(row)), row_sizes)
        cp_sizes[microbatch, :taken] = np.repeat(row_sizes, row_sizes)
        packs[microbatch, taken:] = np.arange(pack_number, pack_number + num_ranks - taken)
        group_number += len(row)
        pack_number += num_ranks - taken
    return plan_of(pack_of, packs, cp_sizes)
