"""Microbatches of groups and packs: what is in a step, and the plan that all steps make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenloom.packing.balanced import Task, pack_to_levels
from tokenloom.packing.plan import Int64s, PackPlan, plan_of
from tokenloom.packing.sharing import Sharing


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
    """Sub-samples in groups and packs.

    Attributes:
        steps: the groups of each microbatch.
        whole: int64[n], the sub-samples that no group shares.
        pack_of_whole: int64[n], their packs, of one rank each, numbered by microbatch.
        slowest: cost of the slowest rank of each microbatch, added up.
    """

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

    Args:
        placed: groups and packs, sub-samples as positions in `order`.
        order: int64[num_subsamples], sub-samples, longest first.
        num_ranks: number of ranks of a microbatch.
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
