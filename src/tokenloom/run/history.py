"""How a run went on: samples and passes of every source before chosen positions, counted, not estimated.

A point costs as much as the sources and a mixing block, wherever it is: 10^15 positions are as quick as a thousand. 200
points of 10,000 sources take 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.run.audit.span_table import DealsPositions
from tokenloom.run.digest import check_position
from tokenloom.run.lock import RunLock
from tokenloom.run.progress import Entered
from tokenloom.run.take_maps import Int64s
from tokenloom.run.timeline import Timeline

Float64s = NDArray[np.float64]

NUM_POINTS = 200
"""Points of a history, at most, unless they are chosen: the starts of stages, and the end, come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStart:
    """Where a stage begins.

    Attributes:
        stage: its name.
        position: its first position.
    """

    stage: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunHistory:
    """What a run has read before some of its positions.

    Attributes:
        positions: int64[num_points], rising; a point is about what stands before its position.
        sources: names of all sources of the run.
        samples: int64[num_points, num_sources], samples of each source.
        passes: float64[num_points, num_sources], how often each source was read: 1.25 is a pass and a quarter. In the
            reference's order, which shuffles passes together, tokens that were read over those of the source.
        stages: where stages begin, before the last point.
        steps: int64[num_points], the step that reads the position; None where batch sizes were not told.
    """

    positions: Int64s
    sources: tuple[str, ...]
    samples: Int64s
    passes: Float64s
    stages: tuple[StageStart, ...]
    steps: Int64s | None = None

    @property
    def shares(self) -> Float64s:
        """float64[num_points - 1, num_sources], shares of the samples from one point to the next; rows add up to 1."""
        read = np.diff(self.samples, axis=0)
        shares: Float64s = read / np.diff(self.positions)[:, None]
        return shares

    @property
    def shares_so_far(self) -> Float64s:
        """float64[num_points, num_sources], shares of all samples before each point; 0 before the first sample."""
        shares: Float64s = self.samples / np.maximum(self.positions, 1)[:, None]
        return shares

    def largest(self, most: int) -> Int64s:
        """Returns the numbers of the sources with the most samples up to the last point, most first, at most so many.

        Sources that are not read by then are left out.
        """
        last = self.samples[-1]
        order: Int64s = np.argsort(-last, kind="stable")[: min(most, int(np.count_nonzero(last)))]
        return order

    def with_steps(self, topology: DealsPositions) -> Self:
        """Returns the same with the step that reads each position.

        Args:
            topology: what tells it; a `Topology`, as a rule.
        """
        return replace(self, steps=topology.steps(self.positions))

    def __repr__(self) -> str:
        positions = f"{self.positions[0]} to {self.positions[-1]}" if len(self.positions) else "none"
        return f"RunHistory({len(self.positions)} points, positions {positions}, {len(self.sources)} sources)"


def history_of(
    lock: RunLock,
    read_before: Callable[[Int64s], tuple[Int64s, Float64s]],
    positions: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    *,
    until: int | None = None,
) -> RunHistory:
    """Returns what a run has read before positions, see `Run.history`; without these, before mixing blocks."""
    points = _points(lock, until) if positions is None else _checked(lock, positions)
    samples, passes = read_before(points)
    return RunHistory(
        positions=points,
        sources=tuple(source.name for source in lock.sources),
        samples=samples,
        passes=passes,
        stages=_stages(lock, int(points[-1]) if len(points) else 0),
    )


def computed_history(timeline: Timeline, points: Int64s) -> tuple[Int64s, Float64s]:
    """Returns samples and passes of sources before positions."""
    lock = timeline.lock
    samples = np.zeros((len(points), len(lock.sources)), dtype=np.int64)
    passes = np.zeros((len(points), len(lock.sources)), dtype=np.float64)
    read, passed = np.zeros(len(lock.sources), dtype=np.int64), np.zeros(len(lock.sources), dtype=np.float64)
    last = int(points[-1]) if len(points) else 0
    for number, segment in enumerate(lock.segments):
        if segment.start >= last:
            break
        entered = timeline.entered(number)
        stop = segment.stop or last
        first, end = np.searchsorted(points, [segment.start, stop], side="right").tolist()
        for point in range(first, end):
            counts = timeline.num_taken(number, int(points[point]) - segment.start)
            samples[point], passes[point] = read, passed
            samples[point, entered.sources] += counts
            passes[point, entered.sources] = _passes(entered, counts)
        if stop < last:
            counts = timeline.num_taken(number, stop - segment.start)
            read[entered.sources] += counts
            passed[entered.sources] = _passes(entered, counts)
    return samples, passes


def _passes(entered: Entered, counts: Int64s) -> Float64s:
    """Returns the passes of the sources of a segment after so many takes."""
    early = np.zeros(len(counts), dtype=np.int64)
    for leaf in entered.early:
        early[leaf] = entered.num_early(leaf)
    passes: Float64s = entered.passes + (entered.offsets + counts - early) / entered.num_windows
    return passes


def _points(lock: RunLock, until: int | None) -> Int64s:
    """Returns the points of a history for which none were chosen."""
    if until is None and lock.num_samples is None:
        message = "expected a position up to which the history goes, of a run without an end, found none"
        raise ConfigError(message, hint="name one with `until`")
    stop = lock.num_samples if until is None else checked_integer("until", until, at_least=1)
    assert stop is not None
    check_position(lock, stop)
    even = np.array([stop * number // NUM_POINTS for number in range(NUM_POINTS)], dtype=np.int64)  # exact
    starts = np.array([segment.start for segment in lock.segments if segment.start < stop], dtype=np.int64)
    begun = starts[np.searchsorted(starts, even, side="right") - 1]
    even = begun + (even - begun) // lock.mixing_block * lock.mixing_block
    return np.unique([*even.tolist(), *starts.tolist(), stop])


def _checked(lock: RunLock, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Int64s:
    points = np.asarray(positions)
    if points.ndim != 1 or (points.dtype.kind not in "iu" and len(points)):
        message = f"expected whole numbers as the positions of a history, found {positions!r}"
        raise ConfigError(message)
    points = points.astype(np.int64)
    if (np.diff(points) <= 0).any() or (len(points) and points[0] < 0):
        message = f"expected positions that rise from 0 on, found {points.tolist()[:5]}"
        raise ConfigError(message)
    check_position(lock, int(points.max(initial=0)))
    return points


def _stages(lock: RunLock, last: int) -> tuple[StageStart, ...]:
    """Returns where stages begin: a stage may have several segments."""
    found: list[StageStart] = []
    for segment in lock.segments:
        if segment.start < last and (not found or found[-1].stage != segment.stage):
            found.append(StageStart(stage=segment.stage, position=segment.start))
    return tuple(found)
