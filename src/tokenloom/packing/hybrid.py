"""`HybridCostBalancedScheduler`: groups of ranks share long sub-samples; short sub-samples stay whole."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import GOOD_ENOUGH, Task, checked_costs, cost_exponent, pack_to_levels, scaled_costs
from tokenloom.packing.base_scheduler import BasePackingScheduler
from tokenloom.packing.cost import least_slowest_cost
from tokenloom.packing.pack_plan import Int64s, PackPlan, plan_of, stable_order

ALMOST_EVEN = 1.035  # maximum `least` / `even_share` of sharings that are tried first; plans cost 1 % more than `least`
LIMITS = (float("inf"), 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)  # of (cost per rank) / (cost of a full pack)
MOST_CUTS = 2  # maximum `cuts` of `_first_widened`; each cut may add a microbatch
LEAST_JOINED = 128  # sub-samples that cost less than 1 / 128 of a microbatch join no group
MOST_JOINED = 8  # maximum sub-samples in a group if there is no `max_num_seqs`
MOST_TRIED = 4  # maximum number of sharings that are planned in full; usually, one is enough


class HybridCostBalancedScheduler(BasePackingScheduler):
    """A scheduler that plans packs of nearly equal cost, and chooses context-parallel groups for each microbatch.

    Short sub-samples are packed on single ranks. A longer sub-sample gets the smallest group of 2, 4, 8, … ranks that
    it fits, or a larger group if the smallest one would delay other ranks. (n tokens fit s ranks if n, rounded up to a
    multiple of 2 × s, is at most s × `max_seqlen_per_dp_cp_rank`.) A group also gets short sub-samples if another group
    of its microbatch costs more. If sub-samples are fewer than ranks, each gets a group; groups grow to use all ranks.

    Groups of s ranks are aligned blocks of ranks [i × s, (i + 1) × s), so each size and block needs one communicator.

    Example:
        >>> plan = HybridCostBalancedScheduler(8, cp_size=1, dp_size=4).plan([16, 8, 7, 1])
        >>> plan.assignments, plan.cp_sizes.tolist()
        ((((0,), (0,), (1,), (2, 3)),), [[2, 2, 1, 1]])

    The arguments are the same as in `BasePackingScheduler`; groups may span all dp × cp ranks.
    """

    is_dynamic_cp = True

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The possible group sizes, in ascending order."""
        return tuple(2**k for k in range(self.num_ranks.bit_length()))

    @property
    def max_tokens(self) -> int:
        return max(size * self.tokens_per_rank(size) for size in (1, self.group_sizes[-1]))

    def tokens_per_rank(self, size: int) -> int:
        """Returns the maximum tokens per rank in a group of `size`; an even number for two chunks if `size` > 1."""
        return self.max_seqlen_per_dp_cp_rank if size == 1 else self.max_seqlen_per_dp_cp_rank // 2 * 2

    def _plan(self, lengths: Int64s) -> PackPlan:
        order = stable_order(int(lengths.max()) - lengths)
        batch = HybridBatch(self, lengths[order])
        return _lay_out(batch.groups_and_packs() or batch.groups_only(), order, self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A choice of the sub-samples that groups of ranks share, and of group sizes; other sub-samples stay whole.

    Per shared sub-sample, costliest first, `numbers` has the index, `sizes` the number of ranks, and `costs` the cost
    per rank. `least` is a lower bound of `Placed.slowest`; `even_share` is the total cost divided by the number
    of ranks.
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
    """A plan: steps with groups of ranks, and packs of whole sub-samples; `slowest` sums the steps' highest costs."""

    steps: list[Step]
    whole: Int64s
    pack_of_whole: Int64s
    slowest: int


class HybridBatch:
    """Plans one global batch; `lengths` must be sorted, longest first."""

    def __init__(self, scheduler: HybridCostBalancedScheduler, lengths: Int64s) -> None:
        self.scheduler = scheduler
        self.lengths = lengths
        self.capacity: int = scheduler.max_seqlen_per_dp_cp_rank
        self.num_ranks: int = scheduler.num_ranks
        self.multiple: int = scheduler.microbatch_multiple
        self.sizes: tuple[int, ...] = scheduler.group_sizes
        largest = max(size * float(scheduler.cost_model.cost(lengths[:1], size)[0]) for size in self.sizes)
        self._exponent = cost_exponent(largest, len(lengths))
        self.needs: Int64s = np.ones(len(lengths), dtype=np.int64)
        for size in self.sizes[:-1]:
            self.needs[lengths > size * scheduler.tokens_per_rank(size)] = 2 * size
        self._costs: dict[int, Int64s] = {}
        self._negatives: dict[int, tuple[Int64s, Int64s]] = {}

    def costs(self, size: int, count: int | None = None) -> Int64s:
        """Returns int64[count]: costs per rank of the `count` longest sub-samples (None: all) in groups of `size`."""
        count = len(self.lengths) if count is None else count
        cached = self._costs.get(size, self.lengths[:0])
        if len(cached) < count:
            cached = self._costs[size] = self._costs_of(self.lengths[:count], size)
        return cached[:count]

    def _negative_costs_and_tokens(self, size: int) -> tuple[Int64s, Int64s]:
        """Returns costs per rank and padded lengths of all sub-samples in groups of `size`, both negated to ascend."""
        if size not in self._negatives:
            padded = -(-self.lengths // (2 * size)) * (2 * size)
            self._negatives[size] = -self.costs(size), -padded
        return self._negatives[size]

    def _costs_of(self, lengths: Int64s, size: int) -> Int64s:
        return scaled_costs(checked_costs(self.scheduler.cost_model, lengths, size), self._exponent)

    def promising_first(self) -> Iterator[Sharing]:
        """Yields sharings with `least` near the smallest `even_share` so far first, then other sharings by `least`."""
        others: list[Sharing] = []
        even_share = float("inf")
        for sharing in self._sharings():
            even_share = min(even_share, sharing.even_share)
            if sharing.least <= ALMOST_EVEN * even_share:
                yield sharing
            else:
                others.append(sharing)
        yield from sorted(others, key=lambda other: other.least)

    def _sharings(self) -> Iterator[Sharing]:
        """Yields distinct sharings: for each of `LIMITS`, the smallest groups within this limit, then larger groups."""
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
        """Returns group sizes for the `count` longest: the smallest that costs <= `limit`, else the cheapest size."""
        known = self.sizes if self.capacity > 1 else (1,)
        sizes = np.array(known, dtype=np.int64)
        table = np.stack([self.costs(size, count) for size in known])
        possible = sizes[:, None] >= self.needs[:count]
        within = possible & (table <= limit)
        least = np.argmin(np.where(possible, table, np.iinfo(np.int64).max), axis=0)
        chosen: Int64s = sizes[np.where(within.any(axis=0), np.argmax(within, axis=0), least)]
        return chosen

    def _first_widened(self, sizes: Int64s, cuts: int) -> Int64s:
        """Widens the groups of the longest sub-samples, so that these groups fill a microbatch of their own.

        Repeats `cuts` times: doubles the groups just widened, then widens the groups of the longest among these.
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
        """Tries plans; returns the plan whose slowest ranks finish first, or None if every plan leaves ranks idle."""
        tried: list[Placed] = []
        for sharing in self.promising_first():
            placed = self._pack_beside(sharing)
            if placed is None:
                continue
            tried.append(placed)
            if placed.slowest <= GOOD_ENOUGH * sharing.even_share or len(tried) == MOST_TRIED:
                break
        return min(tried, key=lambda placed: placed.slowest, default=None)

    def _pack_beside(self, sharing: Sharing) -> Placed | None:
        """Plans a sharing: whole sub-samples get packs, or join groups that cost less than `Step.level`."""
        num_shared, num_all = len(sharing.sizes), len(self.lengths)
        joins = bool((sharing.sizes > self.needs[sharing.numbers]).any())
        most = self.scheduler.max_num_seqs or num_all
        used = int(sharing.sizes.sum())
        packs = max(-(-int(self.lengths[num_shared:].sum()) // self.capacity), -(-(num_all - num_shared) // most))
        num_steps = self._multiple_of(-(-(used + packs) // self.num_ranks))
        best: Placed | None = None
        while True:
            steps = _first_fit(sharing, self.num_ranks)
            num_steps = max(num_steps, self._multiple_of(len(steps)))
            steps += [Step() for _ in range(num_steps - len(steps))]
            spare = num_all - num_shared - (self.num_ranks * num_steps - used)
            if spare < 0 and not self._grow(steps, -spare):
                return best
            steps = self._costliest_first(steps, num_shared)
            whole = self._fill(steps, num_shared, spare) if joins else np.arange(num_shared, num_all)
            found = self._packs_beside(steps, whole, most)
            if best is not None and found is not None:
                return found if found.slowest * GOOD_ENOUGH < best.slowest else best
            if found is not None and found.slowest <= GOOD_ENOUGH * sharing.least:
                return found
            best = found
            num_steps += self.multiple

    def _packs_beside(self, steps: list[Step], whole: Int64s, most: int) -> Placed | None:
        """Packs the sub-samples `whole` on the ranks without a group; returns None if the sub-samples do not fit."""
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
        """Sorts steps, costliest first; a step without groups costs as much as the longest sub-sample it will get."""
        alone = self.costs(1)[num_shared:][self.lengths[num_shared:] > self.capacity // 2][:: self.num_ranks].tolist()
        empty = [step for step in steps if not step.groups]
        levels = [(step.level, step) for step in steps if step.groups]
        levels += zip((alone + [0] * len(empty))[: len(empty)], empty, strict=True)
        return [step for _, step in sorted(levels, key=lambda one: -one[0])]

    def _fill(self, steps: Sequence[Step], num_shared: int, most: int) -> Int64s:
        """Adds up to `most` whole sub-samples, longest first, to groups below `Step.level`; returns the others."""
        free = list(range(num_shared, len(self.lengths)))
        for step in steps:
            level = step.level
            least = level // LEAST_JOINED
            for group in step.groups:
                costs, tokens = self._negative_costs_and_tokens(group.size)
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
        """Doubles the costliest groups until they take at least `missing` more ranks; returns False if impossible."""
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
        """Returns a plan in which every sub-sample has its own group and every rank is in a group."""
        num_steps = self._multiple_of(-(-int(self.needs.sum()) // self.num_ranks))
        while num_steps <= len(self.lengths):
            steps = self._spread(num_steps)
            if steps is not None and all(self._grow([step], self.num_ranks - step.num_ranks) for step in steps):
                nothing = np.empty(0, dtype=np.int64)
                steps.sort(key=lambda step: -step.level)
                return Placed(steps=steps, whole=nothing, pack_of_whole=nothing, slowest=0)
            num_steps += self.multiple
        message = f"{len(self.lengths)} sub-samples cannot occupy {self.num_ranks} ranks in groups of 1, 2, 4, … ranks"
        raise ConfigError(message, hint="use more sub-samples per global batch")

    def _spread(self, num_steps: int) -> list[Step] | None:
        """Assigns each sub-sample to the step with the most idle ranks; returns None if a sub-sample does not fit."""
        steps = [Step() for _ in range(num_steps)]
        heap = [(0, i) for i in range(num_steps)]
        for number, size in enumerate(self.needs.tolist()):
            used, i = heapq.heappop(heap)
            if used + size > self.num_ranks:
                return None
            steps[i].groups.append(Group([number], size, int(self.costs(size)[number])))
            heapq.heappush(heap, (used + size, i))
        return steps


def _first_fit(sharing: Sharing, num_ranks: int) -> list[Step]:
    """Assigns the group of each shared sub-sample to the first step with enough idle ranks."""
    steps: list[Step] = []
    left: list[int] = []
    first: dict[int, int] = {}  # per group size, the first step that may have room
    columns = (sharing.numbers.tolist(), sharing.sizes.tolist(), sharing.costs.tolist())
    for number, size, cost in zip(*columns, strict=True):
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
    """Converts `placed`, whose sub-samples are indices into `order`, to a `PackPlan`."""
    pack_of = np.empty_like(order)
    packs = np.empty((len(placed.steps), num_ranks), dtype=np.int64)
    cp_sizes = np.ones_like(packs)
    number, num_groups = 0, sum(len(step.groups) for step in placed.steps)
    alone = num_groups
    for microbatch, step in enumerate(placed.steps):
        rank = 0
        for group in sorted(step.groups, key=lambda group: -group.size):  # the largest first, which aligns all groups
            pack_of[order[group.numbers]] = number
            packs[microbatch, rank : rank + group.size] = number
            cp_sizes[microbatch, rank : rank + group.size] = group.size
            number, rank = number + 1, rank + group.size
        packs[microbatch, rank:] = np.arange(alone, alone + num_ranks - rank)
        alone += num_ranks - rank
    pack_of[order[placed.whole]] = placed.pack_of_whole + num_groups
    return plan_of(pack_of, packs, cp_sizes)
