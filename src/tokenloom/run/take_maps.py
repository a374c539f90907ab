"""What a source gives next: takes, from 0 on, as windows of its walks; and back.

Mostly that is one walk after the other (`progress.Entered`). What stands before the walks is a finite map: what a cut
has left over (`Leftovers`), the rest of a walk (`Stretch`), or the rest of a pass together with the walk over data that
came in its midst (`Merge`). They are a few numbers each, except for leftovers: a cut leaves less than a mixing block.

All arrays are int64, and any number of takes is answered at once. A walk or window that a map does not have has the
take -1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import Mixture

Int64s = NDArray[np.int64]

Windows = tuple[Int64s, Int64s]
"""Numbers of walks, and of windows in them."""

WindowRange = tuple[int, int, int]
"""A walk, the first of some windows of it, and one past the last."""


class TakeMap(ABC):
    """A number of takes."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take; they are in the map."""

    @abstractmethod
    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 where it is not in the map."""

    @abstractmethod
    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the windows of takes [first, stop), which are in the map; in no order."""


@dataclass(frozen=True, slots=True)
class Stretch(TakeMap):
    """Windows [first, stop) of a walk, in order."""

    walk: int
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def locate(self, takes: Int64s) -> Windows:
        return np.full(takes.shape, self.walk, dtype=np.int64), takes + self.first

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        there = (walks == self.walk) & (windows >= self.first) & (windows < self.stop)
        return np.where(there, windows - self.first, -1)

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        if first < stop:
            yield self.walk, self.first + first, self.first + stop


@dataclass(frozen=True, slots=True, eq=False)
class Leftovers(TakeMap):
    """Windows one by one: int64[num_takes], each at most once."""

    walks: Int64s
    windows: Int64s

    def __len__(self) -> int:
        return len(self.walks)

    def locate(self, takes: Int64s) -> Windows:
        return self.walks[takes], self.windows[takes]

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        found = np.full(walks.shape, -1, dtype=np.int64)
        order = np.lexsort((self.windows, self.walks))
        for walk in np.unique(self.walks).tolist():  # tiny sources alone have many
            first, stop = np.searchsorted(self.walks[order], [walk, walk + 1])
            asked = np.flatnonzero(walks == walk)
            places = np.searchsorted(self.windows[order[first:stop]], windows[asked]) + first
            takes = order[np.minimum(places, stop - 1)]
            found[asked] = np.where(self.windows[takes] == windows[asked], takes, -1)
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        for walk, window in zip(self.walks[first:stop].tolist(), self.windows[first:stop].tolist(), strict=True):
            yield walk, window, window + 1


@dataclass(frozen=True, slots=True)
class Rest(TakeMap):
    """What is left of a map when `first` of its takes are gone."""

    of: TakeMap
    first: int

    def __len__(self) -> int:
        return len(self.of) - self.first

    def locate(self, takes: Int64s) -> Windows:
        return self.of.locate(takes + self.first)

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        return np.maximum(self.of.takes(walks, windows) - self.first, -1)

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        return self.of.ranges(first + self.first, stop + self.first)


class Parts(TakeMap):
    """Maps as one, whose takes are dealt to them in some way."""

    __slots__ = ("maps",)

    def __init__(self, maps: Sequence[TakeMap]) -> None:
        self.maps: tuple[TakeMap, ...] = tuple(maps)

    @abstractmethod
    def _deal(self, takes: Int64s) -> tuple[NDArray[Any], Int64s]:
        """Returns the number of the map that each take is of, and which take of that map it is."""

    @abstractmethod
    def _dealt(self, number: int, takes: Int64s) -> Int64s:
        """Returns the takes that those of one map are."""

    @abstractmethod
    def counts(self, stop: int) -> list[int]:
        """Returns how many of the first takes are of each map."""

    def __len__(self) -> int:
        return sum(map(len, self.maps))

    def locate(self, takes: Int64s) -> Windows:
        walks, windows = np.empty_like(takes), np.empty_like(takes)
        numbers, inside = self._deal(takes)
        for number, each in enumerate(self.maps):
            here = np.flatnonzero(numbers == number)
            if len(here):
                walks[here], windows[here] = each.locate(inside[here])
        return walks, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        found = np.full(walks.shape, -1, dtype=np.int64)
        for number, each in enumerate(self.maps):
            inside = each.takes(walks, windows)
            here = np.flatnonzero(inside >= 0)
            if len(here):
                found[here] = self._dealt(number, np.ascontiguousarray(inside[here]))
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        for each, begin, end in zip(self.maps, self.counts(first), self.counts(stop), strict=True):
            if begin < end:
                yield from each.ranges(begin, end)


class Chain(Parts):
    """Maps one after the other."""

    __slots__ = ("_starts",)

    def __init__(self, maps: Sequence[TakeMap]) -> None:
        super().__init__(maps)
        self._starts = np.cumsum([0, *map(len, maps)], dtype=np.int64)

    def _deal(self, takes: Int64s) -> tuple[NDArray[Any], Int64s]:
        numbers = np.searchsorted(self._starts, takes, side="right") - 1
        return numbers, takes - self._starts[numbers]

    def _dealt(self, number: int, takes: Int64s) -> Int64s:
        return takes + int(self._starts[number])

    def counts(self, stop: int) -> list[int]:
        found: list[int] = np.diff(np.minimum(self._starts, stop)).tolist()
        return found


class Merge(Parts):
    """Maps as one, evenly mixed, so that all end together; none is empty."""

    __slots__ = ("_mixture",)

    def __init__(self, maps: Sequence[TakeMap]) -> None:
        super().__init__(maps)
        self._mixture = Mixture(list(map(len, maps)))

    def _deal(self, takes: Int64s) -> tuple[NDArray[Any], Int64s]:
        return self._mixture.locate(takes)

    def _dealt(self, number: int, takes: Int64s) -> Int64s:
        found: Int64s = self._mixture.positions(np.full(len(takes), number, dtype=np.int32), takes)
        return found

    def counts(self, stop: int) -> list[int]:
        found: list[int] = self._mixture.counts(stop).tolist()
        return found


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
        case Chain():
            rests = [rest_of(each, gone) for each, gone in zip(whole.maps, whole.counts(first), strict=True)]
            return chained([rest for rest in rests if rest is not None])
        case _:
            return Rest(whole, first)
