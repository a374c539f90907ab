"""Computes, from the lock alone, how many samples, tokens and passes of each source each segment reads or leaves.

All numbers are exact, except `pass_ends`: these are positions before mixing, and mixing can move the last window of a
pass within its mixing block. Sizes of endless segments are None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels.mixture import Mixture
from tokenloom.numbers import checked_integer
from tokenloom.rendering.card import HasFacts
from tokenloom.run.digest import check_position
from tokenloom.run.lock import Int64s, Integers, LockedSegment, RunLock
from tokenloom.run.source_progress import Entered, Progress, are_packs, mixed_size, num_taken, planned_size
from tokenloom.run.timeline import Timeline

Float64s = NDArray[np.float64]
MOST_PASS_ENDS = 5  # maximum number of pass ends listed per segment and source


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWalks:
    """`count` walks of a source; each reads pairs [first_pair, last_pair) once, as `num_windows` samples."""

    first_pair: int
    last_pair: int
    num_windows: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReading:
    """What a segment reads of one source. In an endless segment, attributes that depend on the end are None.

    Attributes:
        weight, weights: weight of the source, and the sum of the weights of all sources.
        num_samples, num_tokens, share: samples and tokens read of the source; the source's share of the samples.
        num_windows: samples per pass.
        begun_before, begun_after: number of passes that began before the start and before the end of the segment.
        left_before, left_after: remaining samples of the current pass at the start and at the end of the segment.
        taken_over: remaining samples of a pass that began at another sequence length.
        num_pass_ends: number of passes that end in the segment.
        pass_ends: positions, before mixing, where the first `MOST_PASS_ENDS` of these passes end.
    """

    source: str
    weight: int
    weights: int
    num_samples: int | None = None
    share: float | None = None
    num_windows: int
    num_tokens: int | None = None
    begun_before: int
    begun_after: int | None = None
    left_before: int
    left_after: int | None = None
    taken_over: int
    walks: tuple[PlannedWalks, ...] | None = None
    num_pass_ends: int | None
    pass_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """A segment of the lock and what it reads of each source; sizes are None in an endless segment."""

    stage: str
    start: int
    sequence_length: int
    num_samples: int | None
    num_tokens: int | None
    readings: tuple[PlannedReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSource:
    """What becomes of a source's tokens: `offered_tokens` is the sum of seen, unseen and uncovered tokens.

    Attributes:
        offered_tokens: tokens of all walks that begin; if samples are packs, slots of the packs.
        seen_tokens: tokens in samples that are read.
        unseen_tokens: tokens in unread samples of begun passes when the sequence length changes or the run ends.
        unseen_samples: how many samples these are: one count per series of segments with one sequence length.
        uncovered_tokens: tokens after the last whole sample of each walk.
        difference: offered minus seen, unseen and uncovered tokens; always 0.
    """

    name: str
    num_passes: int
    num_walks: int
    offered_tokens: int
    seen_tokens: int
    unseen_tokens: int
    unseen_samples: tuple[int, ...]
    uncovered_tokens: int
    difference: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCap:
    """The `position`, before mixing, where a source reaches `max_passes`; None if the source never does.

    `follows`: "stop" if the run ends there, "renormalise" if only other sources continue, "repeat" if all continue.
    """

    source: str
    max_passes: int
    position: int | None = None
    follows: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(HasFacts):
    """What a run reads, by segment and by source. `num_samples` and `num_tokens` are None if the run is endless."""

    num_samples: int | None
    num_tokens: int | None
    segments: tuple[PlannedSegment, ...]
    sources: tuple[PlannedSource, ...]
    caps: tuple[PlannedCap, ...]

    def facts(self) -> dict[str, Any]:
        """Returns the sizes, sources and caps, for display; see `HasFacts`."""
        sources = [
            {
                "source": source.name,
                "passes": source.num_passes,
                "tokens offered": source.offered_tokens,
                "seen": source.seen_tokens,
                "unseen": source.unseen_tokens,
                "cut off": source.uncovered_tokens,
            }
            for source in self.sources
        ]
        caps = list(map(asdict, self.caps))
        return {"samples": self.num_samples, "tokens": self.num_tokens, "sources": sources, "caps": caps}


def plan_of(lock: RunLock) -> RunPlan:
    """Returns the plan of a run in time proportional to the numbers of segments and sources."""
    planning = _Planning(lock)
    segments = tuple(map(planning.add, lock.segments))
    return RunPlan(
        num_samples=lock.num_samples,
        num_tokens=None if lock.num_samples is None else sum(segment.num_tokens or 0 for segment in segments),
        segments=segments,
        sources=tuple(map(planning.source, range(len(lock.sources)))),
        caps=tuple(planning.caps.values()),
    )


class _Planning:
    def __init__(self, lock: RunLock) -> None:
        self._lock = lock
        self._progress = Progress(lock.sources, lock)
        self._read: list[list[tuple[Entered, PlannedReading]]] = [[] for _ in lock.sources]
        self.caps: dict[int, PlannedCap] = {
            number: PlannedCap(source=source.name, max_passes=source.max_passes)
            for number, source in enumerate(lock.sources)
            if source.max_passes is not None
        }
        self._are_packs = are_packs(lock)

    def add(self, segment: LockedSegment) -> PlannedSegment:
        known, size = set(self._progress.special), segment.num_samples
        entered = self._progress.enter(segment)
        self._progress.plan(entered, segment)
        sources = entered.sources.tolist()
        begun_before = [self._progress.num_begun(source) for source in sources]
        mixture = Mixture([weight for _, weight in segment.weights])
        ends = self._pass_ends(entered, mixture, segment)
        self._note_caps(entered, mixture, segment)
        total = sum(weight for _, weight in segment.weights)
        readings = [
            PlannedReading(
                source=self._lock.sources[source].name,
                weight=weight,
                weights=total,
                num_windows=int(entered.num_windows[leaf]),
                begun_before=begun_before[leaf],
                left_before=entered.left_of_pass(leaf),
                taken_over=entered.taken_over.get(leaf, 0),
                num_pass_ends=ends[leaf][0],
                pass_ends=ends[leaf][1],
            )
            for leaf, (source, weight) in enumerate(segment.weights)
        ]
        if size is not None:
            mixed = self._progress.mixed(segment)
            counts = num_taken(mixed, self._lock.mixing_block, size).tolist()
            self._progress.leave(entered, segment, mixed)
            begun_after = [self._progress.num_begun(source) for source in sources]
            walks = self._begun(entered, np.subtract(begun_after, begun_before), set(self._progress.special) - known)
            for leaf, source in enumerate(sources):
                readings[leaf] = replace(
                    readings[leaf],
                    num_samples=counts[leaf],
                    share=counts[leaf] / size,
                    num_tokens=counts[leaf] * segment.sequence_length,
                    begun_after=begun_after[leaf],
                    left_after=self._progress.left_of_pass(source),
                    walks=tuple(walks[leaf]),
                )
                self._read[source].append((entered, readings[leaf]))
        return PlannedSegment(
            stage=segment.stage,
            start=segment.start,
            sequence_length=segment.sequence_length,
            num_samples=size,
            num_tokens=None if size is None else size * segment.sequence_length,
            readings=tuple(readings),
        )

    def source(self, number: int) -> PlannedSource:
        num_walks = seen = slots = offered = 0
        left: dict[int, tuple[int, int]] = {}
        for entered, reading in self._read[number]:
            length = entered.segment.sequence_length
            if reading.taken_over:
                samples, before = left.popitem()[1]
                slots += reading.taken_over * length - samples * before
            seen += (reading.num_samples or 0) * length
            left[entered.phase] = reading.left_after or 0, length
            for each in reading.walks or ():
                tokens = each.num_windows * length
                slots += tokens * each.count
                if not self._are_packs:
                    tokens = self._progress.sizes.tokens(number, each.first_pair, each.last_pair)
                offered += tokens * each.count
                num_walks += each.count
        unseen = sum(samples * length for samples, length in left.values())
        return PlannedSource(
            name=self._lock.sources[number].name,
            num_passes=self._progress.num_begun(number),
            num_walks=num_walks,
            offered_tokens=offered,
            seen_tokens=seen,
            unseen_tokens=unseen,
            unseen_samples=tuple(samples for samples, _ in left.values()),
            uncovered_tokens=offered - slots,
            difference=slots - seen - unseen,
        )

    def _begun(self, entered: Entered, counts: Int64s, special: set[tuple[int, int]]) -> list[list[PlannedWalks]]:
        """Returns, for each source of a segment, the walks that begin in it: regular walks and walks over new pairs."""
        begun: list[list[PlannedWalks]] = [[] for _ in entered.sources]
        leaves = {source: leaf for leaf, source in enumerate(entered.sources.tolist())}
        walks = [(leaves[source], self._progress.special[source, walk], 1) for source, walk in sorted(special)]
        walks = [each for each in walks if each[1].first_pair]
        walks += [(leaf, entered.regular_walk(leaf, 0), int(counts[leaf])) for leaf in np.flatnonzero(counts).tolist()]
        for leaf, walk, count in walks:
            pairs = {"first_pair": walk.first_pair, "last_pair": walk.last_pair}
            begun[leaf].append(PlannedWalks(**pairs, num_windows=walk.num_windows, count=count))
        return begun

    def _pass_ends(
        self, entered: Entered, mixture: Mixture, segment: LockedSegment
    ) -> list[tuple[int | None, tuple[int, ...]]]:
        """Returns, by source, the number of passes that end in the segment, and where the first of them end."""
        taken = None if segment.num_samples is None else mixture.counts(segment.num_samples)
        leaves, takes, counts = [], [], []
        for leaf in range(len(entered.sources)):
            left, size = entered.left_of_pass(leaf), int(entered.num_windows[leaf])
            first = (left or size) - 1
            count = None if taken is None else max(0, (int(taken[leaf]) - first - 1) // size + 1)
            named = MOST_PASS_ENDS if count is None else min(count, MOST_PASS_ENDS)
            counts.append((count, named))
            leaves += [leaf] * named
            takes += [first + size * number for number in range(named)]
        ks = mixture.positions(np.array(leaves, dtype=np.int32), np.array(takes, dtype=np.int64)) + segment.start
        found = iter(ks.tolist())
        return [(count, tuple(islice(found, named))) for count, named in counts]

    def _note_caps(self, entered: Entered, mixture: Mixture, segment: LockedSegment) -> None:
        later = next((dict(each.weights) for each in self._lock.segments if each.start == segment.stop), None)
        taken = None if segment.num_samples is None else mixture.counts(segment.num_samples)
        for leaf, source in enumerate(entered.sources.tolist()):
            cap = self.caps.get(source)
            if cap is None or cap.position is not None:
                continue
            within = entered.takes_within(leaf, cap.max_passes)
            if taken is not None and taken[leaf] == within:
                follows = "stop" if later is None else "repeat" if source in later else "renormalise"
                self.caps[source] = replace(cap, position=segment.stop, follows=follows)
            elif taken is None or taken[leaf] > within:
                k = mixture.positions(np.array([leaf], dtype=np.int32), np.array([within], dtype=np.int64))
                self.caps[source] = replace(cap, position=segment.start + int(k[0]), follows="repeat")


def closed_at(lock: RunLock, position: int) -> RunLock:
    """Returns a copy of a lock in which the run ends at `position`."""
    segments = []
    for segment in lock.segments:
        if segment.start >= position:
            break
        size = position - segment.start
        if segment.num_samples is None or segment.num_samples > size:
            planned = None if segment.stretch_length is None else planned_size(segment)
            segment = replace(segment, num_samples=size, mixed_as=mixed_size(segment), planned=planned)
        segments.append(segment)
    return replace(lock, segments=tuple(segments))


NUM_POINTS = 200  # maximum number of default points of a history, besides stage starts and the end


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStart:
    """The first position of a stage."""

    stage: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunHistory:
    """The samples and passes that a run has read before each of several positions.

    Attributes:
        positions: int64[num_points], ascending.
        sources: names of all sources of the run.
        samples: int64[num_points, num_sources], samples read of each source.
        passes: float64[num_points, num_sources], passes over each source: 1.25 is a pass and a quarter. In the
            reference's order, tokens read divided by tokens of the source, since passes are shuffled together.
        stages: names and first positions of the stages that begin before the last position.
        steps: int64[num_points], training step of each position; None unless the caller added it.
    """

    positions: Int64s
    sources: tuple[str, ...]
    samples: Int64s
    passes: Float64s
    stages: tuple[StageStart, ...]
    steps: Int64s | None = None

    @property
    def shares(self) -> Float64s:
        """Shares of the sources in the samples between adjacent positions, float64[num_points - 1, num_sources]."""
        read = np.diff(self.samples, axis=0)
        shares: Float64s = read / np.diff(self.positions)[:, None]
        return shares

    def __repr__(self) -> str:
        positions = f"{self.positions[0]} to {self.positions[-1]}" if len(self.positions) else "none"
        return f"RunHistory({len(self.positions)} points, positions {positions}, {len(self.sources)} sources)"


ReadBefore = Callable[[Int64s], tuple[Int64s, Float64s]]  # returns samples and passes read before each position


def history_of(lock: RunLock, read_before: ReadBefore, positions: Integers | None, *, until: int | None) -> RunHistory:
    """Returns the history of a run; see `Run.history`."""
    points = _points(lock, until) if positions is None else _checked(lock, positions)
    samples, passes = read_before(points)
    last = points.max(initial=0)
    starts = {segment.stage: segment.start for segment in reversed(lock.segments) if segment.start < last}
    return RunHistory(
        positions=points,
        sources=tuple(source.name for source in lock.sources),
        samples=samples,
        passes=passes,
        stages=tuple(StageStart(stage=name, position=start) for name, start in reversed(starts.items())),
    )


def computed_history(timeline: Timeline, points: Int64s) -> tuple[Int64s, Float64s]:
    """Returns two arrays [num_points, num_sources]: the samples and the passes of a source read before a point."""
    lock = timeline.lock
    samples = np.zeros((len(points), len(lock.sources)), dtype=np.int64)
    passes = np.zeros((len(points), len(lock.sources)), dtype=np.float64)
    last = int(points.max(initial=0))
    for number, segment in enumerate(lock.segments):
        if segment.start >= last:
            break
        found = timeline.segment(number)
        entered, mixed = found.entered, found.mixed
        stop = min(last, segment.stop or last)
        first, end = np.searchsorted(points, [segment.start, stop], side="right").tolist()
        for point, position in enumerate([*points[first:end].tolist(), stop], first):
            counts = num_taken(mixed, lock.mixing_block, position - segment.start)
            rows = slice(point, point + 1 if point < end else None)  # the counts at the end apply to all later points
            regular = entered.offsets + counts - entered.early_counts
            samples[rows, entered.sources] += counts
            passes[rows, entered.sources] = entered.passes + regular / entered.num_windows
    return samples, passes


def _points(lock: RunLock, until: int | None) -> Int64s:
    if (stop := lock.num_samples if until is None else checked_integer("until", until, at_least=1)) is None:
        raise ConfigError("the run is endless, so its history needs an end", hint="pass `until`")
    check_position(lock, stop)
    even = np.array([stop * number // NUM_POINTS for number in range(NUM_POINTS)], dtype=np.int64)  # exact
    starts = np.array([segment.start for segment in lock.segments if segment.start < stop], dtype=np.int64)
    begun = starts[np.searchsorted(starts, even, side="right") - 1]
    even = begun + (even - begun) // lock.mixing_block * lock.mixing_block
    return np.unique([*even.tolist(), *starts.tolist(), stop])


def _checked(lock: RunLock, positions: Integers) -> Int64s:
    points = np.asarray(positions)
    is_whole = points.ndim == 1 and (points.dtype.kind in "iu" or not len(points))
    if not is_whole or (np.diff(points, prepend=-1) <= 0).any():
        raise ConfigError(f"positions must be integers of at least 0, ascending without repeats, got {positions!r:.80}")
    points = points.astype(np.int64)
    check_position(lock, int(points.max(initial=0)))
    return points
