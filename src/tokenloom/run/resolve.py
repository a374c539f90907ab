"""From the stages of `run.toml` to the segments of a lock.

A stage is one segment, or several: where a source that it reads grows, and where one has been read `max_passes` times.
Segments that training has begun to read stay what they are: `resolve` goes along them and resolves anew what comes
after. A segment that now ends elsewhere, but whose last mixing block was touched, is kept with the size that it is
mixed by: cut, or followed by another segment of its stage. Whether the past stayed as it was, `changes.check_past`
says of the finished lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Protocol

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.kernels import Mixture, smallest_weights
from tokenloom.run.amounts import MOST_SAMPLES
from tokenloom.run.lock import LockedSegment, LockedSource, RunLock
from tokenloom.run.progress import Entered, Progress, mixed_size
from tokenloom.run.settings import StageSettings
from tokenloom.run.walk_sizes import OrderSettings

Weights = tuple[tuple[int, int], ...]
"""(number of a source, weight above 0), by number."""


class StagedSettings(OrderSettings, Protocol):
    """The part of `RunSettings` that decides segments."""

    @property
    def stages(self) -> tuple[StageSettings, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """A source that has been read as often as it may be.

    Attributes:
        source: its name.
        stage: name of the stage.
        position: the position from which on it is not read, or nothing is.
        on_exhausted: what follows: "stop", "renormalise" or "repeat".
    """

    source: str
    stage: str
    position: int
    on_exhausted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The segments of a run.

    Attributes:
        segments: the segments.
        exhausted: where sources have been read as often as they may be, by position.
        stopped: whether the run ends before its last stage does, because of that.
        cut_short: the source that ends it, where stages have a size that the run does not come to; None for none.
    """

    segments: tuple[LockedSegment, ...]
    exhausted: tuple[Exhausted, ...] = ()
    stopped: bool = False
    cut_short: str | None = None


def resolve(
    settings: StagedSettings, sources: Sequence[LockedSource], old: RunLock | None = None, consumed: int = 0
) -> Resolved:
    """Returns the segments of a run.

    Args:
        settings: its settings.
        sources: its sources; their numbers are those of the old lock.
        old: the lock before, if there is one.
        consumed: positions that stay as the old lock has them: read, or before an amendment.

    Raises:
        ConfigError: a stage reads a source without windows at its start, or has no samples; the run is too long, or
            not as long as what was read; a source has been read too often.
    """
    consumed = 0 if old is None else consumed
    if old is not None and consumed > (end := old.num_samples or MOST_SAMPLES):
        message = f"expected at most the {end} positions of the run to have been read, found {consumed}"
        raise ConfigError(message, hint="is it the lock of another run?")
    resolving = _Resolving(settings, sources, old, consumed)
    for stage in settings.stages:
        if not resolving.add_stage(stage):
            is_meant = stage is settings.stages[-1] and stage.passes is None and stage.num_samples is None
            return Resolved(
                segments=tuple(resolving.segments),
                exhausted=tuple(resolving.exhausted),
                stopped=True,
                cut_short=None if is_meant else resolving.exhausted[-1].source,
            )
    return Resolved(segments=tuple(resolving.segments), exhausted=tuple(resolving.exhausted))


class _Resolving:
    """Segments up to some position, and how far the sources are there."""

    def __init__(
        self, settings: StagedSettings, sources: Sequence[LockedSource], old: RunLock | None, consumed: int
    ) -> None:
        self.segments: list[LockedSegment] = []
        self.exhausted: list[Exhausted] = []
        self._sources = sources
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._block = settings.mixing_block
        self._progress = Progress(sources, settings)
        self._consumed = consumed
        self._old_caps = [source.max_passes for source in (() if old is None else old.sources)]
        begun = [segment for segment in old.segments if segment.start < consumed] if old is not None else []
        self._history = {segment.start: segment for segment in begun}
        self._current = begun[-1].start if begun else -1

    @property
    def position(self) -> int:
        """Where the next segment begins."""
        stop = self.segments[-1].stop if self.segments else 0
        assert stop is not None  # no stage follows an endless one
        return stop

    def add_stage(self, stage: StageSettings) -> bool:
        """Adds the segments of a stage; returns whether the run goes on behind it."""
        start = self.position
        weights, size = self._weights_and_size(stage)
        if start + (size or 0) > MOST_SAMPLES:
            message = (
                f"expected at most 2**60 samples up to the end of stage {stage.name!r}, found {start + (size or 0)}"
            )
            raise ConfigError(message)
        stop = None if size is None else start + size
        while not self.segments or self.segments[-1].num_samples is not None:
            if self.position == stop:
                break
            if not self._add_segment(stage, weights, stop):
                return False
        return True

    def _add_segment(self, stage: StageSettings, weights: Weights, stop: int | None) -> bool:
        """Adds a segment of a stage from here on; returns whether there was anything left to read."""
        start = self.position
        read = self._history.get(start)
        if read is not None and read.stage != stage.name:
            read = None
        gone = self._gone(stage, weights, read)
        self._note(stage, gone, start)
        kept = _smallest({source: weight for source, weight in weights if source not in gone})
        if not kept or (gone and read is None and stage.on_exhausted == "stop"):
            return False
        sources = np.array([source for source, _ in kept], dtype=np.int64)
        entered = self._progress.enter(stage.name, start, stage.sequence_length, sources)
        segment = LockedSegment(
            stage=stage.name, start=start, num_samples=None, sequence_length=stage.sequence_length, weights=kept
        )
        if read is None:
            stop = self._stop(stage, entered, segment, stop)
            segment = replace(segment, num_samples=None if stop is None else stop - start)
        elif start == self._current:
            segment = replace(segment, num_samples=read.num_samples, mixed_as=read.mixed_as)
            segment = self._end_current(stage, entered, segment, stop, returns=self._return(stage, gone))
        else:
            segment = replace(segment, num_samples=read.num_samples, mixed_as=read.mixed_as)
            ends = [end for end in (stop, read.stop) if end is not None]
            segment = _ended(segment, min(ends), self._block, self._consumed)
        self.segments.append(segment)
        if segment.num_samples is not None:
            self._progress.leave(entered, segment, self._progress.mixed(segment))
        return True

    def _weights_and_size(self, stage: StageSettings) -> tuple[Weights, int | None]:
        """Returns the weights of a stage, and its samples; None for an endless one.

        Passes are quotas: as many whole windows as they make, at least one of each source.
        """
        if stage.passes is None:
            assert stage.weights is not None
            common = lcm(*(share.denominator for _, share in stage.weights))
            shares = {self._numbers[name]: int(share * common) for name, share in stage.weights}
            return _smallest(shares), stage.num_samples
        numbers = np.array(sorted(self._numbers[name] for name, _ in stage.passes), dtype=np.int64)
        num_pairs = self._progress.sizes.num_pairs(numbers, self.position)
        sizes = self._progress.sizes.of_sources(numbers, num_pairs, stage.sequence_length)
        passes = {self._numbers[name]: share for name, share in stage.passes}
        quotas = {
            source: max(1, int(passes[source] * num_windows))
            for source, num_windows in zip(numbers.tolist(), sizes.tolist(), strict=True)
        }
        return _smallest(quotas), sum(quotas.values())

    def _gone(self, stage: StageSettings, weights: Weights, read: LockedSegment | None) -> set[int]:
        """Returns the sources of a stage that are not read from here on: those that have been read often enough.

        Of a segment that was begun those are what it lacks, where their pass was over: caps may have been others then.
        """
        sources = {source for source, _ in weights}
        if read is not None:
            sources -= {source for source, _ in read.weights}
            return {
                each for each in sources if each >= len(self._old_caps) or self._was_over(each, stage.sequence_length)
            }
        if stage.on_exhausted == "repeat":
            return set()
        return {source for source in sources if not self._may_read(source, stage.sequence_length)}

    def _may_read(self, source: int, sequence_length: int) -> bool:
        """Whether a source may be read from here on, by the caps of today."""
        cap = self._sources[source].max_passes
        return cap is None or self._progress.may_take(source, self.position, sequence_length, cap) > 0

    def _was_over(self, source: int, sequence_length: int) -> bool:
        """Whether the cap of the old lock forbids the next window of a source, or another cap that one and no other."""
        may_take = partial(self._progress.may_take, source, self.position, sequence_length)
        if (cap := self._old_caps[source]) is not None and may_take(cap) <= 0:
            return True
        begun, unread = self._progress.num_begun(source), int(self._progress.unread.get(source, 0))
        return any(may_take(cap) == 0 for cap in range(max(1, begun - unread - 2), begun + 1))

    def _return(self, stage: StageSettings, gone: set[int]) -> bool:
        """Whether sources that a segment does not read may be read again, by the caps of today."""
        if stage.on_exhausted == "repeat":
            return bool(gone)
        return any(self._may_read(source, stage.sequence_length) for source in gone)

    def _stop(self, stage: StageSettings, entered: Entered, segment: LockedSegment, stop: int | None) -> int | None:
        """Returns where a segment ends: with its stage, where a source grows, or where one is exhausted."""
        growth = self._progress.sizes.next_growth(entered.sources, segment.start + 1)
        cap = self._cap(stage, entered, segment, stop if growth is None else growth)
        return min((end for end in (stop, growth, cap) if end is not None), default=None)

    def _end_current(
        self, stage: StageSettings, entered: Entered, read: LockedSegment, stop: int | None, *, returns: bool
    ) -> LockedSegment:
        """Returns the segment that training was in, ended where it is to end now."""
        size, consumed = mixed_size(read), self._consumed
        blocks = -(-(consumed - read.start) // self._block)
        touched = read.start + min(blocks * self._block, size)
        growth = self._progress.sizes.next_growth(entered.sources, consumed)
        cap = self._cap(stage, entered, read, stop)
        if cap is not None and cap < touched and cap != read.stop:
            cap = consumed  # within a mixed block windows beyond the cap are read already
        ends = [stop, growth, cap, consumed if returns else None]
        if size % self._block and read.start + size // self._block * self._block < consumed:
            ends.append(read.start + size)
        return _ended(read, min((end for end in ends if end is not None), default=None), self._block, consumed)

    def _cap(self, stage: StageSettings, entered: Entered, segment: LockedSegment, stop: int | None) -> int | None:
        """Returns where the mixture of a segment takes the first window that a cap forbids.

        None: nowhere before `stop`. Where exhausted sources are read again, that is only noted.
        """
        leaves, takes = [], []
        for leaf, source in enumerate(entered.sources.tolist()):
            if (cap := self._sources[source].max_passes) is not None:
                leaves.append(leaf)
                takes.append(entered.takes_within(leaf, cap))
        mixture = Mixture([weight for _, weight in segment.weights])
        ks = mixture.positions(np.array(leaves, dtype=np.int32), np.array(takes, dtype=np.int64))
        end = MOST_SAMPLES if stop is None else stop
        found = sorted(zip((ks + segment.start).tolist(), leaves, strict=True))
        reached = [(position, leaf) for position, leaf in found if segment.start <= position < end]
        if stage.on_exhausted == "repeat":
            for position, leaf in reached:
                self._note(stage, {int(entered.sources[leaf])}, position)
            return None
        return reached[0][0] if reached else None

    def _note(self, stage: StageSettings, sources: set[int], position: int) -> None:
        for name in (self._sources[source].name for source in sorted(sources)):
            if not any(known.source == name and known.stage == stage.name for known in self.exhausted):
                self.exhausted.append(
                    Exhausted(source=name, stage=stage.name, position=position, on_exhausted=stage.on_exhausted)
                )


def _smallest(weights: dict[int, int]) -> Weights:
    if not weights:
        return ()
    numbers = sorted(weights)
    return tuple(zip(numbers, smallest_weights([weights[number] for number in numbers]), strict=True))


def _ended(read: LockedSegment, stop: int | None, block: int, consumed: int) -> LockedSegment:
    """Returns a segment that was begun, ended at a position; what was read of it stays as it is.

    If the mixing block of its new end was touched, it goes on to be mixed by the length that it had.
    """
    if stop == read.stop:
        return read
    if stop is None:
        return replace(read, num_samples=None, mixed_as=None)
    size = stop - read.start
    begin = (size - 1) // block * block
    mixed_as = min(mixed_size(read), begin + block) if read.start + begin < consumed else size
    return replace(read, num_samples=size, mixed_as=mixed_as if mixed_as > size else None)
