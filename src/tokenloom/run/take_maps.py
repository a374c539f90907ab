"""What a source gives next: takes, from 0 on, as windows of its walks; and back.

Mostly that is one walk after the other (`Regular`). What stands before the walks is a finite map: what a cut has left
over (`Leftovers`), the rest of a walk (`Stretch`), or the rest of a pass together with the walk over data that came in
its midst (`Merge`). They are a few numbers each, except for leftovers, of which a cut leaves less than a mixing block.

All arrays are int64, and any number of takes is answered at once. A walk or window that a map does not have has the
take -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import Mixture

Int64s = NDArray[np.int64]

Windows = tuple[Int64s, Int64s]
"""Numbers of walks, and of windows in them."""

WindowRange = tuple[int, int, int]
"""A walk, the first of some windows of it, and one past the last."""


class TakeMap(Protocol):
    """A number of takes."""

    def __len__(self) -> int:
        """Returns how many takes there are."""
        ...

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take; they are in the map."""
        ...

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        ...

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop), which are in the map; in no order."""
        ...


@dataclass(frozen=True, slots=True)
class Regular:
    """Walks without end, one after the other.

    Attributes:
        walk: number of the first.
        offset: its window that comes first, in [0, num_windows).
        num_windows: windows of each walk.
    """

    walk: int
    offset: int
    num_windows: int

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        walks, windows = np.divmod(takes + self.offset, self.num_windows)
        return walks + self.walk, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it came before, or is none."""
        takes = (walks - self.walk) * self.num_windows + windows - self.offset
        takes[(walks < self.walk) | (windows < 0) | (windows >= self.num_windows) | (takes < 0)] = -1
        return takes


@dataclass(frozen=True, slots=True)
class Stretch:
    """Windows [first, stop) of a walk, in order."""

    walk: int
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        return np.full(takes.shape, self.walk, dtype=np.int64), takes + self.first

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        there = (walks == self.walk) & (windows >= self.first) & (windows < self.stop)
        return np.where(there, windows - self.first, -1)

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop)."""
        if first < stop:
            yield self.walk, self.first + first, self.first + stop


@dataclass(frozen=True, slots=True, eq=False)
class Leftovers:
    """Windows one by one.

    Attributes:
        walks, windows: int64[num_takes], each window at most once.
    """

    walks: Int64s
    windows: Int64s

    def __len__(self) -> int:
        return len(self.walks)

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        return self.walks[takes], self.windows[takes]

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        found = np.full(walks.shape, -1, dtype=np.int64)
        if not len(self):
            return found
        order = np.lexsort((self.windows, self.walks))
        for walk in np.unique(self.walks).tolist():  # tiny sources alone have many
            first, stop = np.searchsorted(self.walks[order], [walk, walk + 1])
            asked = np.flatnonzero(walks == walk)
            places = np.searchsorted(self.windows[order[first:stop]], windows[asked]) + first
            takes = order[np.minimum(places, stop - 1)]
            found[asked] = np.where(self.windows[takes] == windows[asked], takes, -1)
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop)."""
        for walk, window in zip(self.walks[first:stop].tolist(), self.windows[first:stop].tolist(), strict=True):
            yield walk, window, window + 1


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a map when `first` of its takes are gone."""

    of: TakeMap
    first: int

    def __len__(self) -> int:
        return len(self.of) - self.first

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        return self.of.locate(takes + self.first)

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        return np.maximum(self.of.takes(walks, windows) - self.first, -1)

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop)."""
        return self.of.ranges(first + self.first, stop + self.first)


class Chain:
    """Maps one after the other."""

    __slots__ = ("_starts", "maps")

    def __init__(self, maps: Sequence[TakeMap]) -> None:
        """Chains maps."""
        self.maps: tuple[TakeMap, ...] = tuple(maps)
        self._starts = list(accumulate((len(each) for each in maps), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        walks, windows = np.empty_like(takes), np.empty_like(takes)
        for number, each in enumerate(self.maps):
            here = np.flatnonzero((takes >= self._starts[number]) & (takes < self._starts[number + 1]))
            if len(here):
                walks[here], windows[here] = each.locate(takes[here] - self._starts[number])
        return walks, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        found = np.full(walks.shape, -1, dtype=np.int64)
        for number, each in enumerate(self.maps):
            inside = each.takes(walks, windows)
            found = np.where(inside >= 0, inside + self._starts[number], found)
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop)."""
        for start, each in zip(self._starts, self.maps, strict=False):
            inside = max(first - start, 0), min(stop - start, len(each))
            if inside[0] < inside[1]:
                yield from each.ranges(*inside)


class Merge:
    """Two maps as one, evenly mixed, so that both end together."""

    __slots__ = ("_maps", "_mixture")

    def __init__(self, left: TakeMap, right: TakeMap) -> None:
        """Merges two maps, neither of which is empty."""
        self._maps = (left, right)
        self._mixture = Mixture([len(left), len(right)])

    def __len__(self) -> int:
        return len(self._maps[0]) + len(self._maps[1])

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take."""
        walks, windows = np.empty_like(takes), np.empty_like(takes)
        sides, inside = self._mixture.locate(takes)
        for side, each in enumerate(self._maps):
            here = np.flatnonzero(sides == side)
            if len(here):
                walks[here], windows[here] = each.locate(inside[here])
        return walks, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""
        found = np.full(walks.shape, -1, dtype=np.int64)
        for side, each in enumerate(self._maps):
            inside = each.takes(walks, windows)
            here = np.flatnonzero(inside >= 0)
            if len(here):
                sides = np.full(len(here), side, dtype=np.int32)
                found[here] = self._mixture.positions(sides, np.ascontiguousarray(inside[here]))
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop)."""
        before, after = self._mixture.counts(first).tolist(), self._mixture.counts(stop).tolist()
        for side, each in enumerate(self._maps):
            yield from each.ranges(before[side], after[side])


def chained(maps: Sequence[TakeMap]) -> TakeMap | None:
    """Returns maps one after the other, without empty ones; None if nothing is left."""
    filled: list[TakeMap] = []
    for each in maps:
        filled += each.maps if isinstance(each, Chain) else [each] if len(each) else []
    if len(filled) < 2:
        return filled[0] if filled else None
    return Chain(filled)


def rest_of(whole: TakeMap, first: int) -> TakeMap | None:
    """Returns what is left of a map when `first` of its takes are gone; None if nothing is."""
    if first >= len(whole):
        return None
    match whole:
        case _ if first == 0:
            return whole
        case Rest():
            return Rest(whole.of, whole.first + first)
        case Stretch():
            return Stretch(whole.walk, whole.first + first, whole.stop)
        case Leftovers():
            return Leftovers(whole.walks[first:], whole.windows[first:])
        case Chain():
            starts = accumulate((len(each) for each in whole.maps), initial=0)
            rests = (rest_of(each, max(0, first - start)) for each, start in zip(whole.maps, starts, strict=False))
            return chained([rest for rest in rests if rest is not None])
        case _:
            return Rest(whole, first)
