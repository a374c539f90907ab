"""Which window stands at a position of a run, and at which position a window stands: arithmetic over the lock.

A position is in a segment. The mixture of the segment says which source it is, and which of that source's takes there
(`kernels.MixedStage`); how far the source was says which window that is (`progress.py`). Nothing is stored per sample
or pass: a segment costs about 60 bytes per source, once it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.forks import READING_LOCK
from tokenloom.kernels.mixture import MixedStage
from tokenloom.run.lock import RunLock
from tokenloom.run.progress import MOST_WALKS, MOST_WINDOWS, Entered, Int64s, Progress, Walk, given_out, too_many_walks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """What stands at positions, in their order: numbers of segments, sources, walks, and windows in these."""

    segments: NDArray[np.int32]
    sources: NDArray[np.int32]
    walks: Int64s
    windows: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class EnteredSegment:
    """What the sources of a segment give in it, and its mixture.

    The mixture gives out `given` takes of each leaf, int64[num_leaves], up to the end of the last mixing block.
    """

    entered: Entered
    mixed: MixedStage
    given: Int64s
    sources: NDArray[np.int32]


class Timeline:
    """The order of a run as a function with an inverse. Thread-safe; pickled as its lock."""

    def __init__(self, lock: RunLock) -> None:
        self.lock = lock
        self._starts = np.array([segment.start for segment in lock.segments], dtype=np.int64)
        self._progress = Progress(lock.sources, lock)
        self._segments: list[EnteredSegment] = []

    def __reduce__(self) -> tuple[type[Timeline], tuple[RunLock]]:
        return Timeline, (self.lock,)

    def locate(self, positions: Int64s) -> Located:
        """Returns what stands at positions."""
        positions = np.ascontiguousarray(positions, dtype=np.int64)
        stop = self.lock.end
        first, last = bounds_of(positions) if len(positions) else (0, -1)
        if first < 0 or last >= stop:
            wrong = positions[(positions < 0) | (positions >= stop)][0]
            raise IndexError(f"position {wrong} out of range: the run has {stop} samples")
        number = int(np.searchsorted(self._starts, first, side="right")) - 1
        if first <= last < self._end_of(first):  # all in one segment, as nearly always
            sources, walks, windows = self._locate(number, positions)
            segments = np.full(len(positions), number, dtype=np.int32)
            return Located(segments=segments, sources=sources, walks=walks, windows=windows)
        segments = np.searchsorted(self._starts, positions, side="right").astype(np.int32) - np.int32(1)
        sources, walks, windows = np.empty_like(segments), np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(segments).tolist():
            here = np.flatnonzero(segments == number)
            sources[here], walks[here], windows[here] = self._locate(number, positions[here])
        return Located(segments=segments, sources=sources, walks=walks, windows=windows)

    def _locate(self, number: int, positions: Int64s) -> tuple[NDArray[np.int32], Int64s, Int64s]:
        segment = self.segment(number)
        leaves, takes = segment.mixed.locate(positions - segment.entered.start)
        walks, windows = segment.entered.locate(leaves, takes)
        sources = segment.sources[leaves]
        if (walk := int(walks.max())) >= MOST_WALKS:
            place = int(walks.argmax())
            raise too_many_walks(self.lock.sources[sources[place]].name, f"position {positions[place]}", walk)
        return sources, walks, windows

    def positions_of(self, source: int, walks: Int64s, windows: Int64s, *, sequence_length: int) -> Int64s:
        """Returns where windows of a source stand: int64[num_windows], -1 for those that the run does not read."""
        walks, windows = np.asarray(walks, dtype=np.int64), np.asarray(windows, dtype=np.int64)
        found = np.full(walks.shape, -1, dtype=np.int64)
        asked = np.flatnonzero((walks >= 0) & (walks < MOST_WALKS) & (windows >= 0) & (windows < MOST_WINDOWS))
        for segment, leaf in self._readings(source):
            if not len(asked):
                break
            if segment.entered.sequence_length == sequence_length:
                takes = segment.entered.takes(leaf, walks[asked], windows[asked])
                there = np.flatnonzero((takes >= 0) & (takes < segment.given[leaf]))
                leaves = np.full(len(there), leaf, dtype=np.int32)
                positions = segment.mixed.offsets(leaves, takes[there]) + segment.entered.start
                found[asked[there]] = np.where(positions < self._end_of(segment.entered.start), positions, -1)
                asked = asked[found[asked] < 0]
        return found

    def walk_of(self, source: int, walk: int) -> Walk:
        """Returns what a walk of a source goes over."""
        regular = None
        for segment, leaf in self._readings(source):
            if segment.entered.walks[leaf] <= walk:
                regular = segment.entered.regular_walk(leaf, walk)
        if (found := self._progress.special.get((source, walk), regular)) is None or not 0 <= walk < MOST_WALKS:
            raise IndexError(f"walk {walk} out of range: the run does not come to it in source {source}")
        return found

    def special_walks(self, source: int) -> list[int]:
        """Returns the numbers of walks of a source that differ from regular ones, in segments that were entered."""
        return [walk for number, walk in self._progress.special if number == source]

    def _readings(self, source: int) -> Iterator[tuple[EnteredSegment, int]]:
        """Yields the segments that read a source, and its leaf there."""
        for number in range(len(self.lock.segments)):
            segment = self.segment(number)
            leaf = int(np.searchsorted(segment.entered.sources, source))
            if (segment.entered.sources[leaf : leaf + 1] == source).any():
                yield segment, leaf

    def _end_of(self, start: int) -> int:
        later = int(np.searchsorted(self._starts, start, side="right"))
        return int(self._starts[later]) if later < len(self._starts) else self.lock.end

    def segment(self, number: int) -> EnteredSegment:
        """Returns what the sources of a segment give in it; builds those up to it first."""
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


def bounds_of(positions: NDArray[np.int64]) -> tuple[int, int]:
    """Returns the least and the largest of some positions."""
    if positions.size <= _FEW and positions.ndim == 1:  # a call of NumPy takes longer than looking at so few
        numbers = positions.tolist()
        return min(numbers), max(numbers)
    return int(positions.min()), int(positions.max())


_FEW = 128
