"""`DefaultDynamicCPScheduler`: plans with context-parallel groups of several sizes, as in Megatron.

The scheduler fills one microbatch after another, longest sub-sample first. The longest sub-sample gets a group of as
many ranks as it needs, and its length limits the work of every rank (see `SLACK`). Each other sub-sample goes into the
existing or new group that keeps the busiest rank's work lowest; if no group fits, the sub-sample waits for the next
microbatch. At the end, the groups with the fewest ranks grow until no rank is idle.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.base_scheduler import BasePackingScheduler
from tokenloom.packing.pack_plan import Int64s, PackPlan, stable_order

SLACK = 0.05
"""Fraction by which a rank's work may exceed (length of the longest sub-sample) * (maximum tokens per rank)."""

Subsamples = list[tuple[int, int]]
"""(index, length) of each sub-sample, longest first."""


@dataclass(slots=True)
class Group:
    """A pack that `size` ranks share; each rank has `per_rank` tokens and attention `work`: floats, as in Megatron."""

    size: int
    members: Subsamples = field(default_factory=list)
    tokens: int = 0
    per_rank: float = 0.0
    work: float = 0.0

    def add(self, number: int, length: int) -> None:
        self.members.append((number, length))
        self.tokens += length
        self.per_rank += length / self.size
        self.work += length * length / self.size

    def has_room(self, length: int, tokens_per_rank: int) -> bool:
        fits = self.tokens + length <= self.size * tokens_per_rank
        return fits and self.per_rank + length / self.size <= tokens_per_rank

    def widen(self, size: int) -> None:
        self.size = size
        self.work = sum(length * length / size for _, length in self.members)


class DefaultDynamicCPScheduler(BasePackingScheduler):
    """A scheduler that makes the same plans as `default_dynamic_cp` in Megatron's development branch.

    The number of ranks need not be a power of two: if a sub-sample is too long for the largest group whose size is a
    power of two, all ranks share that sub-sample.

    Example:
        >>> plan = DefaultDynamicCPScheduler(8, cp_size=2, dp_size=2).plan([16, 8, 7, 1])
        >>> plan.assignments, plan.cp_sizes.tolist()
        ((((0,), (0,), (1,), (2, 3)),), [[2, 2, 1, 1]])

    Other arguments are the same as in `BasePackingScheduler`.

    Args:
        min_cp_size: minimum number of ranks that share a pack: a power of two below dp × cp, or dp × cp itself.
    """

    is_dynamic_cp = True

    def __init__(self, *args: Any, min_cp_size: int = 1, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.min_cp_size: int = min_cp_size
        known = [2**k for k in range(self.num_ranks.bit_length())]
        if min_cp_size not in (*known, self.num_ranks):
            choices = sorted({*known, self.num_ranks})
            raise ConfigError(f"`min_cp_size`: must be one of {choices}, got {min_cp_size!r}")
        self.sizes: list[int] = [size for size in known if size >= min_cp_size]

    @property
    def max_tokens(self) -> int:
        return self.max_seqlen_per_dp_cp_rank * self.num_ranks

    def _plan(self, lengths: Int64s) -> PackPlan:
        order = stable_order(int(lengths.max()) - lengths)
        left = list(zip(order.tolist(), lengths[order].tolist(), strict=True))
        microbatches: list[list[Group]] = []
        while left:
            groups, left = self._next_microbatch(left)
            microbatches.append(groups)
        most = max(len(group.members) for groups in microbatches for group in groups)
        if self.max_num_seqs is not None and most > self.max_num_seqs:
            message = f"a pack has {most} sub-samples, more than the maximum of {self.max_num_seqs}"
            raise ConfigError(message, hint="plan with `hybrid_cost_balanced`, or increase `thd_max_packed_sequences`")
        self._cut_to_multiple(microbatches)
        packs = [group for groups in microbatches for group in groups]
        sizes = np.array([group.size for group in packs], dtype=np.int64)
        return PackPlan(
            num_ranks=self.num_ranks,
            ids=np.array([number for group in packs for number, _ in group.members], dtype=np.int64),
            pack_offsets=np.cumsum([0, *(len(group.members) for group in packs)], dtype=np.int64),
            packs=np.repeat(np.arange(len(packs)), sizes).reshape(-1, self.num_ranks),
            cp_sizes=np.repeat(sizes, sizes).reshape(-1, self.num_ranks),
        )

    def ranks_needed(self, length: int) -> int:
        """Returns the size of the smallest group with room for `length` tokens; if no group has room, `num_ranks`."""
        tokens = self.max_seqlen_per_dp_cp_rank
        return next((size for size in self.sizes if size * tokens >= length), self.num_ranks)

    def _next_microbatch(self, subsamples: Subsamples) -> tuple[list[Group], Subsamples]:
        """Returns the groups of one microbatch, in which no rank is idle, and the sub-samples that are in no group."""
        forming = _Forming(self, *subsamples[0])
        left: Subsamples = []
        at = 1
        while at < len(subsamples):
            # Skips all sub-samples that are too long for every group.
            stop = bisect_left(subsamples, -forming.longest, lo=at, key=lambda subsample: -subsample[1])
            left += subsamples[at:stop]
            if stop < len(subsamples):
                number, length = subsamples[stop]
                group = forming.place(length)
                if group is None:
                    left.append((number, length))
                else:
                    forming.add(group, number, length)
            at = stop + 1
        if self._widen(forming.groups):
            return forming.groups, left
        # If ranks stay idle, plans one group of all ranks instead, with as many sub-samples as fit.
        everyone, left = Group(self.num_ranks), []
        for number, length in subsamples:
            if everyone.has_room(length, self.max_seqlen_per_dp_cp_rank):
                everyone.add(number, length)
            else:
                left.append((number, length))
        return [everyone], left

    def _widen(self, groups: list[Group]) -> bool:
        """Enlarges groups, always the smallest one, until no rank is idle; returns False if some ranks stay idle."""
        while (used := sum(group.size for group in groups)) < self.num_ranks:
            smallest = min(group.size for group in groups)
            larger = next((size for size in self.sizes if size > smallest), self.num_ranks)
            if larger == smallest or used + larger - smallest > self.num_ranks:
                return False
            next(group for group in groups if group.size == smallest).widen(larger)
        return True

    def _cut_to_multiple(self, microbatches: list[list[Group]]) -> None:
        """Splits microbatches in two, last ones first, until their number is a multiple of `microbatch_multiple`."""
        missing = -len(microbatches) % self.microbatch_multiple
        at, failed = len(microbatches) - 1, 0
        while missing:
            if at < 0:
                at = len(microbatches) - 1
                if failed >= len(microbatches):
                    number, multiple = len(microbatches), self.microbatch_multiple
                    message = f"{number} microbatches cannot be split into a multiple of {multiple} microbatches"
                    raise ConfigError(message, hint="use more sub-samples: each microbatch has only one pack")
            groups = microbatches[at]
            if len(groups) > 1:
                ends = np.cumsum([group.size for group in groups])
                count = int(np.searchsorted(ends, self.num_ranks // 2)) + 1
                microbatches[at] = self._widened(groups[count:])
                microbatches.append(self._widened(groups[:count]))
                missing, failed = missing - 1, 0
            else:
                failed += 1
            at -= 1

    def _widened(self, groups: list[Group]) -> list[Group]:
        wider = [Group(group.size, group.members) for group in groups]
        if not self._widen(wider):
            sizes = [group.size for group in groups]
            message = f"{len(groups)} groups of {sizes} ranks cannot be widened to occupy all {self.num_ranks} ranks"
            raise ConfigError(message, hint="use more sub-samples, or a number of ranks that is a power of two")
        return wider


class _Forming:
    """A microbatch that is being filled; sub-samples longer than `longest` do not fit."""

    def __init__(self, scheduler: DefaultDynamicCPScheduler, number: int, length: int) -> None:
        self.groups: list[Group] = []
        self.longest = 0.0
        self._by_size: dict[int, list[Group]] = {}
        self._limits: dict[int, float] = {}
        self._scheduler, self._tokens = scheduler, scheduler.max_seqlen_per_dp_cp_rank
        self._free, self._busiest = scheduler.num_ranks, 0.0
        self._most_work = float(length) * float(self._tokens) * (1.0 + SLACK)
        self.add(Group(scheduler.ranks_needed(length)), number, length)

    def place(self, length: int) -> Group | None:
        """Returns the existing or new group that keeps the busiest rank's work lowest; None if no group fits."""
        best: Group | None = None
        least, least_size = float("inf"), self._scheduler.ranks_needed(length)
        for size in [size for size in self._scheduler.sizes if size >= least_size] or [least_size]:
            if least <= self._busiest:
                break
            cost = length * length / size
            for group in self._by_size.get(size, []):
                work = max(self._busiest, group.work + cost)
                if work <= self._most_work and work < least and group.has_room(length, self._tokens):
                    best, least = group, work
                    if work == self._busiest:
                        break
            work = max(self._busiest, cost)
            if size <= self._free and work <= self._most_work and work < least:
                best, least = Group(size), work
        return best

    def add(self, group: Group, number: int, length: int) -> None:
        if not group.members:
            self.groups.append(group)
            self._by_size.setdefault(group.size, []).append(group)
            self._free -= group.size
        group.add(number, length)
        self._busiest = max(self._busiest, group.work)
        same = self._by_size[group.size]
        room = self._tokens * group.size - min(one.tokens for one in same)
        power = self._most_work - min(one.work for one in same)
        self._limits[group.size] = min(room, math.sqrt(max(power, 0.0) * group.size))
        new = min(self._free * self._tokens, math.sqrt(self._most_work * self._free))
        self.longest = max(new, *self._limits.values()) + 1.0  # 1 exceeds any rounding error
