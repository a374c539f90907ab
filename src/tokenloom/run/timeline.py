"""Maps positions of a run to windows, and windows to positions, computed from the lock.

A position lies in a segment. The segment's mixture (`kernels.MixedStage`) gives the source, and the take: the number of
windows that the source gives earlier in this segment. `source_progress.py` turns the take into a window.
Nothing is stored per sample or pass. Once used, a segment needs about 60 bytes of memory per source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.forks import READING_LOCK
from tokenloom.kernels.mixture import MixedStage
from tokenloom.run.lock import Int64s, RunLock
from tokenloom.run.source_progress import MOST_WALKS, MOST_WINDOWS, Entered, Progress, Walk, given_out, too_many_walks


class Located(NamedTuple):
    """The segment, source, walk and window of each position, in the order of the positions."""

    segments: NDArray[np.int32]
    sources: NDArray[np.int32]
    walks: Int64s
    windows: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class EnteredSegment:
    """The windows that each source gives in a segment, and the mixture of the segment.

    `given`, int64[num_leaves]: number of windows of each source until the end of the segment's last mixing block.
    """

    entered: Entered
    mixed: MixedStage
    given: Int64s
    sources: NDArray[np.int32]


class Timeline:
    """The order of a run as a function from positions to windows, with its inverse. Thread-safe; pickled as a lock."""

    def __init__(self, lock: RunLock) -> None:
        self.lock = lock
        self._starts = np.array([segment.start for segment in lock.segments], dtype=np.int64)
        self._progress = Progress(lock.sources, lock)
        self._segments: list[EnteredSegment] = []

    def __reduce__(self) -> tuple[type[Timeline], tuple[RunLock]]:
        return Timeline, (self.lock,)

    def locate(self, positions: Int64s) -> Located:
        positions = np.ascontiguousarray(positions, dtype=np.int64)
        stop = self.lock.end
        first, last = bounds_of(positions) if len(positions) else (0, -1)
        if first < 0 or last >= stop:
            wrong = positions[(positions < 0) | (positions >= stop)][0]
            raise IndexError(f"position {wrong} out of range: the run has {stop} samples")
        number = int(np.searchsorted(self._starts, first, side="right")) - 1
        if first <= last < self._end_of(first):  # the common case: all in one segment
            return Located(np.full(len(positions), number, dtype=np.int32), *self._locate(number, positions))
        segments = np.searchsorted(self._starts, positions, side="right").astype(np.int32) - np.int32(1)
        sources, walks, windows = np.empty_like(segments), np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(segments).tolist():
            here = np.flatnonzero(segments == number)
            sources[here], walks[here], windows[here] = self._locate(number, positions[here])
        return Located(segments, sources, walks, windows)

    def _locate(self, number: int, positions: Int64s) -> tuple[NDArray[np.int32], Int64s, Int64s]:
        segment = self.segment(number)
        leaves, takes = segment.mixed.locate(positions - segment.entered.segment.start)
        walks, windows = segment.entered.locate(leaves, takes)
        sources = segment.sources[leaves]
        if (walk := int(walks.max())) >= MOST_WALKS:
            place = int(walks.argmax())
            raise too_many_walks(self.lock.sources[sources[place]].name, f"position {positions[place]}", walk)
        return sources, walks, windows

    def positions_of(self, source: int, walks: Int64s, windows: Int64s, *, sequence_length: int) -> Int64s:
        """Returns the position that reads each window of a source, int64[num_windows]; -1 if no position does."""
        walks, windows = np.asarray(walks, dtype=np.int64), np.asarray(windows, dtype=np.int64)
        found = np.full(walks.shape, -1, dtype=np.int64)
        left = np.flatnonzero((walks >= 0) & (walks < MOST_WALKS) & (windows >= 0) & (windows < MOST_WINDOWS))
        for segment, leaf in self._readings(source):
            if not len(left):
                break
            if segment.entered.segment.sequence_length == sequence_length:
                takes = segment.entered.takes(leaf, walks[left], windows[left])
                here = np.flatnonzero((takes >= 0) & (takes < segment.given[leaf]))
                leaves = np.full(len(here), leaf, dtype=np.int32)
                positions = segment.mixed.offsets(leaves, takes[here]) + segment.entered.segment.start
                found[left[here]] = np.where(positions < self._end_of(segment.entered.segment.start), positions, -1)
                left = left[found[left] < 0]
        return found

    def walk_of(self, source: int, walk: int) -> Walk:
        regular = None
        for segment, leaf in self._readings(source):
            if segment.entered.walks[leaf] <= walk:
                regular = segment.entered.regular_walk(leaf, walk)
        if (found := self._progress.special.get((source, walk), regular)) is None or not 0 <= walk < MOST_WALKS:
            raise IndexError(f"walk {walk} out of range: the run does not reach this walk of source index {source}")
        return found

    def special_walks(self, source: int) -> list[int]:
        """Returns the indices of a source's special walks (see `Progress.special`), in the segments entered so far."""
        return [walk for number, walk in self._progress.special if number == source]

    def _readings(self, source: int) -> Iterator[tuple[EnteredSegment, int]]:
        for number in range(len(self.lock.segments)):
            segment = self.segment(number)
            leaf = int(np.searchsorted(segment.entered.sources, source))
            if (segment.entered.sources[leaf : leaf + 1] == source).any():
                yield segment, leaf

    def _end_of(self, start: int) -> int:
        later = int(np.searchsorted(self._starts, start, side="right"))
        return int(self._starts[later]) if later < len(self._starts) else self.lock.end

    def segment(self, number: int) -> EnteredSegment:
        if number < len(self._segments):
            return self._segments[number]
        with READING_LOCK:
            for built in range(len(self._segments), number + 1):
                if built:
                    before = self._segments[-1]
                    self._progress.leave(before.entered, self.lock.segments[built - 1], before.mixed)
                segment = self.lock.segments[built]
                entered, mixed = self._progress.enter(segment), self._progress.mixed(segment)
                self._progress.plan(entered, segment)
                given, sources = mixed.counts(given_out(segment, self.lock.mixing_block)), entered.sources
                self._segments.append(EnteredSegment(entered, mixed, given, sources.astype(np.int32)))
        return self._segments[number]


_FEW = 128


def bounds_of(positions: NDArray[np.int64]) -> tuple[int, int]:
    if positions.size <= _FEW and positions.ndim == 1:  # faster than NumPy for so few
        numbers = positions.tolist()
        return min(numbers), max(numbers)
    return int(positions.min()), int(positions.max())
