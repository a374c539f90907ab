"""The plans of the reference's scheduler with context-parallel groups of several sizes, computed faster.

Microbatch by microbatch, longest sub-sample first. The longest opens a group of as many ranks as it needs, and bounds
the work of a rank. Each further one goes where the busiest rank then has least work: into an open group or a new one.
Sub-samples without a place wait for the next microbatch. Idle ranks widen the first of the smallest groups, repeatedly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.plan import Int64s, PackPlan, stable_order

SLACK = 0.05
"""Share of a rank's work above that of a pack of the longest sub-samples; the reference's number."""

Subsamples = list[tuple[int, int]]
"""(number, length) of each, longest first."""


@dataclass(slots=True)
class Group:
    """Ranks that share a pack: tokens, and tokens and attention work per rank, rounded as in the reference."""

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
    """Gives the plans of `default_dynamic_cp` of the reference's development branch.

    Unlike that, it works for numbers of ranks that are no power of two: all share sub-samples that need more ranks than
    the largest power of two.

    Example:
        >>> plan = DefaultDynamicCPScheduler(8, cp_size=2, dp_size=2).plan([16, 8, 7, 1])
        >>> plan.assignments, plan.cp_sizes.tolist()
        ((((0,), (0,), (1,), (2, 3)),), [[2, 2, 1, 1]])

    The settings are those of `BasePackingScheduler`, and:

    Args:
        min_cp_size: fewest ranks that share a pack: a power of two up to dp × cp, or all.
    """

    is_dynamic_cp = True

    def __init__(self, *args: Any, min_cp_size: int = 1, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.min_cp_size: int = min_cp_size
        known = [2**k for k in range(self.num_ranks.bit_length())]
        if min_cp_size not in (*known, self.num_ranks):
            message = (
                f"min_cp_size={min_cp_size!r} is no size of a group: choose among {sorted({*known, self.num_ranks})}"
            )
            raise ConfigError(message)
        self.sizes: list[int] = [size for size in known if size >= min_cp_size]

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sub-sample that can be planned."""
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
            message = f"a pack has {most} sub-samples, more than {self.max_num_seqs}"
            raise ConfigError(message, hint="plan with `hybrid_cost_balanced`, or raise `thd_max_packed_sequences`")
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
        """Returns the smallest size of a group that can hold a sub-sample; else all ranks."""
        tokens = self.max_seqlen_per_dp_cp_rank
        return next((size for size in self.sizes if size * tokens >= length), self.num_ranks)

    def _next_microbatch(self, subsamples: Subsamples) -> tuple[list[Group], Subsamples]:
        """Returns the groups of a microbatch, largest first, over all ranks; and the remaining sub-samples."""
        forming = _Forming(self, *subsamples[0])
        left: Subsamples = []
        at = 1
        while at < len(subsamples):
            # Skips all that are too long for every group at once.
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
        # All ranks share as many as fit.
        everyone, left = Group(self.num_ranks), []
        for number, length in subsamples:
            if everyone.has_room(length, self.max_seqlen_per_dp_cp_rank):
                everyone.add(number, length)
            else:
                left.append((number, length))
        return [everyone], left

    def _widen(self, groups: list[Group]) -> bool:
        """Widens the first of the smallest groups until no rank is idle; False if that is impossible."""
        while (used := sum(group.size for group in groups)) < self.num_ranks:
            smallest = min(group.size for group in groups)
            larger = next((size for size in self.sizes if size > smallest), self.num_ranks)
            if larger == smallest or used + larger - smallest > self.num_ranks:
                return False
            next(group for group in groups if group.size == smallest).widen(larger)
        return True

    def _cut_to_multiple(self, microbatches: list[list[Group]]) -> None:
        """Cuts microbatches in two, last ones first, so that their number is a multiple.

        Groups of the second half of the ranks keep their place, those of the first go to the end, all widened.
        """
        missing = -len(microbatches) % self.microbatch_multiple
        at, failed = len(microbatches) - 1, 0
        while missing:
            if at < 0:
                at = len(microbatches) - 1
                if failed >= len(microbatches):
                    number, multiple = len(microbatches), self.microbatch_multiple
                    message = f"{number} microbatches cannot be cut to a multiple of {multiple}: all ranks share each"
                    raise ConfigError(message, hint="take more sub-samples into a global batch")
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
            message = f"{self.num_ranks} ranks cannot share {len(groups)} groups of {sizes} ranks"
            hint = "take more sub-samples into a global batch, or ranks that are a power of two"
            raise ConfigError(message, hint=hint)
        return wider


class _Forming:
    """A microbatch that is being filled, longest sub-samples first; none above `longest` has a place."""

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
        """Returns the group, old or new, with which the busiest rank has least work; None if there is no room."""
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
        self.longest = max(new, *self._limits.values()) + 1.0  # one more than any rounding
