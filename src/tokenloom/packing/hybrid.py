"""Context-parallel groups as large as each sub-sample needs: ranks share long ones, short ones stay whole."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import GOOD_ENOUGH, Task, checked_costs, in_units, pack_to_levels, unit_exponent
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.cost import least_slowest_cost
from tokenloom.packing.plan import Int64s, PackPlan, plan_of, stable_order

ALMOST_EVEN = 1.035  # bound / even share of a sharing tried first; plans end about 1 % above the bound
LIMITS = (float("inf"), 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)  # of a rank's cost, / longest of a single rank
MOST_CUTS = 2  # of the last step of groups; each may take one more microbatch
LEAST_JOINED = 128  # sub-samples that cost less than 1 / 128 of their step join no group
MOST_JOINED = 8  # sub-samples of a group
MOST_TRIED = 4  # sharings planned in full; one is enough for most batches


class HybridCostBalancedScheduler(BasePackingScheduler):
    """Plans packs of equal cost with context-parallel groups of different sizes, chosen anew for each microbatch.

    Short sub-samples stay whole, in packs of one rank. A longer one gets the ranks it needs, a power of two: n tokens
    need s ranks if n, rounded up to a multiple of 2 × s, is at most s × `max_seqlen_per_dp_cp_rank`; more, if all ranks
    would wait for it. Short ones join groups cheaper than their step. With fewer sub-samples than ranks, each gets a
    group, and groups grow until no rank is idle.

    Groups are aligned blocks, [i × s, (i + 1) × s): one communicator for each size and block.

    Example:
        >>> plan = HybridCostBalancedScheduler(8, cp_size=1, dp_size=4).plan([16, 8, 7, 1])
        >>> plan.assignments, plan.cp_sizes.tolist()
        ((((0,), (0,), (1,), (2, 3)),), [[2, 2, 1, 1]])

    The settings are those of `BasePackingScheduler`; groups are formed among all dp × cp ranks.
    """

    is_dynamic_cp = True

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The possible sizes of groups, rising."""
        return tuple(2**k for k in range(self.num_ranks.bit_length()))

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sub-sample that can be planned."""
        return max(size * self.tokens_per_rank(size) for size in (1, self.group_sizes[-1]))

    def tokens_per_rank(self, size: int) -> int:
        """Returns the most tokens of a rank, of a sub-sample cut into two chunks per rank."""
        return self.max_seqlen_per_dp_cp_rank if size == 1 else self.max_seqlen_per_dp_cp_rank // 2 * 2

    def _plan(self, lengths: Int64s) -> PackPlan:
        order = stable_order(int(lengths.max()) - lengths)
        batch = HybridBatch(self, lengths[order])
        return _lay_out(batch.groups_and_packs() or batch.groups_only(), order, self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Ranks for each of the longest sub-samples, int64[n], costliest first; all others stay whole.

    `least` is a lower bound of the slowest ranks' cost in all microbatches, `even_share` the mean of all ranks.
    """

    numbers: Int64s
    sizes: Int64s
    costs: Int64s
    least: float
    even_share: float


@dataclass(slots=True)
class Group:
    numbers: list[int]
    size: int
    cost: int


@dataclass(slots=True)
class Step:
    """The groups of one microbatch."""

    groups: list[Group] = field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        return sum(group.size for group in self.groups)

    @property
    def level(self) -> int:
        return max((group.cost for group in self.groups), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Groups of steps, packs of the whole sub-samples, and the sum of the slowest ranks' costs."""

    steps: list[Step]
    whole: Int64s
    pack_of_whole: Int64s
    slowest: int


class HybridBatch:
    """Plans the sub-samples of one global batch, longest first."""

    def __init__(self, scheduler: HybridCostBalancedScheduler, lengths: Int64s) -> None:
        self.scheduler = scheduler
        self.lengths = lengths
        self.capacity: int = scheduler.max_seqlen_per_dp_cp_rank
        self.num_ranks: int = scheduler.num_ranks
        self.multiple: int = scheduler.microbatch_multiple
        self.sizes: tuple[int, ...] = scheduler.group_sizes
        largest = max(size * float(scheduler.cost_model.cost(lengths[:1], size)[0]) for size in self.sizes)
        self._exponent = unit_exponent(largest, len(lengths))
        self.needs: Int64s = np.ones(len(lengths), dtype=np.int64)
        for size in self.sizes[:-1]:
            self.needs[lengths > size * scheduler.tokens_per_rank(size)] = 2 * size
        self._known: dict[int, Int64s] = {}
        self._known_rising: dict[int, tuple[Int64s, Int64s]] = {}

    def costs(self, size: int, count: int | None = None) -> Int64s:
        """Returns int64[count], costs of the longest sub-samples, or all, for each of `size` ranks."""
        count = len(self.lengths) if count is None else count
        known = self._known.get(size, self.lengths[:0])
        if len(known) < count:
            known = self._known[size] = self._costs_of(self.lengths[:count], size)
        return known[:count]

    def _rising(self, size: int) -> tuple[Int64s, Int64s]:
        """Returns negative costs and padded tokens for groups of `size`, int64[num_subsamples] each."""
        if size not in self._known_rising:
            padded = -(-self.lengths // (2 * size)) * (2 * size)
            self._known_rising[size] = -self.costs(size), -padded
        return self._known_rising[size]

    def _costs_of(self, lengths: Int64s, size: int) -> Int64s:
        return in_units(checked_costs(self.scheduler.cost_model, lengths, size), self._exponent)

    def promising_first(self) -> Iterator[Sharing]:
        """Yields sharings: those that may be good enough as they are found, then the others, best first."""
        others: list[Sharing] = []
        even_share = float("inf")
        for way in self._ways():
            even_share = min(even_share, way.even_share)
            if way.least <= ALMOST_EVEN * even_share:
                yield way
            else:
                others.append(way)
        yield from sorted(others, key=lambda other: other.least)

    def _ways(self) -> Iterator[Sharing]:
        """Yields sharings, each once: from high limits to low, as they are and with the longest widened."""
        num_long = int(np.count_nonzero(self.needs > 1))
        alone = self.costs(1)
        full = int(self._costs_of(np.minimum(self.lengths[:1], self.capacity), 1)[0])
        seen: set[bytes] = set()
        is_scarce = len(self.lengths) < self.num_ranks
        for limit in LIMITS:
            count = num_long if is_scarce else max(num_long, int(np.searchsorted(-alone, -limit * full)))
            sizes = self._sizes_within(limit * full, count)
            num_cuts = 0 if is_scarce else MOST_CUTS + 1
            for variant in [sizes, *(self._first_widened(sizes, cuts) for cuts in range(num_cuts))]:
                if variant.tobytes() not in seen:
                    seen.add(variant.tobytes())
                    yield self._sharing(variant)

    def _sizes_within(self, limit: float, count: int) -> Int64s:
        """Returns, for each of the first sub-samples, the fewest ranks within a limit of cost, else the cheapest."""
        known = self.sizes if self.capacity > 1 else (1,)
        sizes = np.array(known, dtype=np.int64)
        table = np.stack([self.costs(size, count) for size in known])
        possible = sizes[:, None] >= self.needs[:count]
        within = possible & (table <= limit)
        least = np.argmin(np.where(possible, table, np.iinfo(np.int64).max), axis=0)
        chosen: Int64s = sizes[np.where(within.any(axis=0), np.argmax(within, axis=0), least)]
        return chosen

    def _first_widened(self, sizes: Int64s, cuts: int) -> Int64s:
        """Returns sizes with which the longest fill a step of their own, as wide as possible.

        With each cut they become twice as wide, and again the longest of them, too few for a step, fill their own.
        """
        num_whole = int(np.count_nonzero(self.lengths[len(sizes) :] > self.capacity // 2))
        widened = np.append(sizes, np.ones(num_whole, dtype=np.int64))
        widest = self.sizes[-1] if self.capacity > 1 else 1
        count = 0
        for cut in range(cuts + 1):
            ends = np.cumsum(widened[: count or None])
            rest = int(ends[-1]) % self.num_ranks if len(ends) else 0
            if not rest:
                break
            count = int(np.searchsorted(ends, rest)) + 1
            wider = 2 ** (max(self.num_ranks // int(ends[count - 1]), 1).bit_length() - (1 if cut == cuts else 0))
            widened[:count] = np.minimum(widened[:count] * wider, widest)
        return widened[: max(len(sizes), int(np.count_nonzero(widened > 1)))]

    def _sharing(self, sizes: Int64s) -> Sharing:
        costs, count = np.empty_like(sizes), len(sizes)
        for size in np.unique(sizes).tolist():
            costs[sizes == size] = self.costs(size, count)[sizes == size]
        order = np.lexsort((-sizes, -costs))
        lengths, whole = self.lengths[count:], self.costs(1)[count:]
        shared = np.repeat(costs, sizes)
        return Sharing(
            numbers=order,
            sizes=sizes[order],
            costs=costs[order],
            least=least_slowest_cost(lengths, whole, self.capacity, self.num_ranks, shared=shared),
            even_share=(float(whole.sum()) + float(shared.sum())) / self.num_ranks,
        )

    def groups_and_packs(self) -> Placed | None:
        """Returns the best plan with packs of short ones; None if they cannot occupy all ranks."""
        tried: list[Placed] = []
        for way in self.promising_first():
            placed = self._pack_beside(way)
            if placed is None:
                continue
            tried.append(placed)
            if placed.slowest <= GOOD_ENOUGH * way.even_share or len(tried) == MOST_TRIED:
                break
        return min(tried, key=lambda placed: placed.slowest, default=None)

    def _pack_beside(self, way: Sharing) -> Placed | None:
        """Returns the steps of a sharing, with the short ones in packs or in groups cheaper than their step."""
        num_shared, num_all = len(way.sizes), len(self.lengths)
        joins = bool((way.sizes > self.needs[way.numbers]).any())
        most = self.scheduler.max_num_seqs or num_all
        taken = int(way.sizes.sum())
        packs = max(-(-int(self.lengths[num_shared:].sum()) // self.capacity), -(-(num_all - num_shared) // most))
        num_steps = self._multiple_of(-(-(taken + packs) // self.num_ranks))
        best: Placed | None = None
        while True:
            steps = _first_fit(way, self.num_ranks)
            num_steps = max(num_steps, self._multiple_of(len(steps)))
            steps += [Step() for _ in range(num_steps - len(steps))]
            spare = num_all - num_shared - (self.num_ranks * num_steps - taken)
            if spare < 0 and not self._grow(steps, -spare):
                return best
            steps = self._costliest_first(steps, num_shared)
            whole = self._fill(steps, num_shared, spare) if joins else np.arange(num_shared, num_all)
            found = self._packs_beside(steps, whole, most)
            if best is not None and found is not None:
                return found if found.slowest * GOOD_ENOUGH < best.slowest else best
            if found is not None and found.slowest <= GOOD_ENOUGH * way.least:
                return found
            best = found
            num_steps += self.multiple

    def _packs_beside(self, steps: list[Step], whole: Int64s, most: int) -> Placed | None:
        """Returns the short ones in packs on the idle ranks; None if they do not fit."""
        short = Task(
            lengths=self.lengths[whole],
            costs=self.costs(1)[whole],
            capacity=self.capacity,
            most_items=most,
            num_ranks=self.num_ranks,
        )
        widths = np.array([self.num_ranks - step.num_ranks for step in steps], dtype=np.int64)
        levels = np.array([step.level for step in steps], dtype=np.int64)
        bases = np.array([sum(one.size * one.cost for one in step.groups) for step in steps], dtype=np.int64)
        pack_of = pack_to_levels(short, widths=widths, levels=levels, bases=bases)
        if pack_of is None:
            return None
        costs = np.zeros(int(widths.sum()), dtype=np.int64)
        np.add.at(costs, pack_of, short.costs)
        np.maximum.at(levels, np.repeat(np.arange(len(steps)), widths), costs)
        return Placed(steps=steps, whole=whole, pack_of_whole=pack_of, slowest=int(levels.sum()))

    def _multiple_of(self, num_steps: int) -> int:
        return -(-num_steps // self.multiple) * self.multiple

    def _costliest_first(self, steps: Sequence[Step], num_shared: int) -> list[Step]:
        """Sorts steps by the cost of their groups, or without any by the longest sub-sample that will be alone."""
        alone = self.costs(1)[num_shared:][self.lengths[num_shared:] > self.capacity // 2][:: self.num_ranks].tolist()
        empty = [step for step in steps if not step.groups]
        levels = [(step.level, step) for step in steps if step.groups]
        levels += zip((alone + [0] * len(empty))[: len(empty)], empty, strict=True)
        return [step for _, step in sorted(levels, key=lambda one: -one[0])]

    def _fill(self, steps: Sequence[Step], num_shared: int, most: int) -> Int64s:
        """Moves up to `most` short ones, longest first, into groups cheaper than their step; returns the others."""
        free = list(range(num_shared, len(self.lengths)))
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
                    at = bisect_left(free, first)
                    if at == len(free) or -costs[free[at]] <= least:
                        break
                    number = free.pop(at)
                    group.numbers.append(number)
                    group.cost -= int(costs[number])
                    room += int(tokens[number])
                    most -= 1
        return np.array(free, dtype=np.int64)

    def _grow(self, steps: Sequence[Step], missing: int) -> bool:
        """Doubles the costliest groups until they have `missing` more ranks, or some more; False if impossible."""
        heap = [(-group.cost, i, j) for i, step in enumerate(steps) for j, group in enumerate(step.groups)]
        heapq.heapify(heap)
        while missing > 0 and heap:
            _, i, j = heapq.heappop(heap)
            group = steps[i].groups[j]
            if group.size <= self.num_ranks - steps[i].num_ranks and 2 * group.size <= self.sizes[-1]:
                missing -= group.size
                group.size *= 2
                group.cost = int(self.costs(group.size)[group.numbers[0]])
                heapq.heappush(heap, (-group.cost, i, j))
        return missing <= 0

    def groups_only(self) -> Placed:
        """Returns steps in which every sub-sample has a group, and every rank is in one."""
        num_steps = self._multiple_of(-(-int(self.needs.sum()) // self.num_ranks))
        while num_steps <= len(self.lengths):
            steps = self._spread(num_steps)
            if steps is not None and all(self._grow([step], self.num_ranks - step.num_ranks) for step in steps):
                nothing = np.empty(0, dtype=np.int64)
                steps.sort(key=lambda step: -step.level)
                return Placed(steps=steps, whole=nothing, pack_of_whole=nothing, slowest=0)
            num_steps += self.multiple
        message = f"{len(self.lengths)} sub-samples cannot occupy {self.num_ranks} ranks in groups of powers of two"
        raise ConfigError(message, hint="take more sub-samples into a global batch")

    def _spread(self, num_steps: int) -> list[Step] | None:
        """Puts each sub-sample into the step with the most idle ranks; None if one does not fit."""
        steps = [Step() for _ in range(num_steps)]
        heap = [(0, i) for i in range(num_steps)]
        for number, size in enumerate(self.needs.tolist()):
            taken, i = heapq.heappop(heap)
            if taken + size > self.num_ranks:
                return None
            steps[i].groups.append(Group([number], size, int(self.costs(size)[number])))
            heapq.heappush(heap, (taken + size, i))
        return steps


def _first_fit(way: Sharing, num_ranks: int) -> list[Step]:
    """Returns steps, the group of each shared sub-sample in the first with enough ranks."""
    steps: list[Step] = []
    left: list[int] = []
    first: dict[int, int] = {}  # before it, no step has room for a group of that size
    for number, size, cost in zip(way.numbers.tolist(), way.sizes.tolist(), way.costs.tolist(), strict=True):
        i = first.get(size, 0)
        while i < len(left) and left[i] < size:
            i += 1
        first[size] = i
        if i == len(left):
            steps.append(Step())
            left.append(num_ranks)
        steps[i].groups.append(Group([number], size, cost))
        left[i] -= size
    return steps


def _lay_out(placed: Placed, order: Int64s, num_ranks: int) -> PackPlan:
    """Returns the plan: in each microbatch the largest groups first, which aligns them, then single ranks.

    Sub-samples of `placed` are positions in `order`.
    """
    pack_of = np.empty_like(order)
    packs = np.empty((len(placed.steps), num_ranks), dtype=np.int64)
    cp_sizes = np.ones_like(packs)
    number, num_groups = 0, sum(len(step.groups) for step in placed.steps)
    alone = num_groups
    for microbatch, step in enumerate(placed.steps):
        taken = 0
        for group in sorted(step.groups, key=lambda group: -group.size):
            pack_of[order[group.numbers]] = number
            packs[microbatch, taken : taken + group.size] = number
            cp_sizes[microbatch, taken : taken + group.size] = group.size
            number, taken = number + 1, taken + group.size
        packs[microbatch, taken:] = np.arange(alone, alone + num_ranks - taken)
        alone += num_ranks - taken
    pack_of[order[placed.whole]] = placed.pack_of_whole + num_groups
    return plan_of(pack_of, packs, cp_sizes)
