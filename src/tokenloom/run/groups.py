"""The samples of a batch by source: what stands at its positions, looked up by the thousand, and who gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.slot_counts import SlotCounts
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.forks import READING_LOCK
from tokenloom.kernels import WINDOW_BITS, sample_numbers
from tokenloom.run.amounts import MOST_SAMPLES
from tokenloom.run.held_out import DeniedDocuments
from tokenloom.run.lock import RunLock
from tokenloom.run.members import Member, Reading, SourceData
from tokenloom.run.timeline import Located, Timeline, bounds_of

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """The samples of a batch that one source gives.

    Attributes:
        member: gives them.
        source: number of the source.
        numbers: int64[count], which samples of it they are.
        rows: their rows in the batch, int64[count]; all rows in order where the batch has no others.
    """

    member: Member
    source: int
    numbers: NDArray[np.int64]
    rows: NDArray[np.int64] | slice

    def fill(self, out: Sample) -> None:
        """Fills its rows of a batch."""
        rows = None if isinstance(self.rows, slice) else self.rows
        self.member.ask(lambda dataset: dataset.fill_rows(self.numbers, out, rows))

    def batch(self) -> Sample:
        """Returns its samples, from a dataset that makes the arrays itself."""
        found: Sample = self.member.ask(lambda dataset: dataset.batch(self.numbers))
        return found

    def lengths(self, *, padded: bool) -> NDArray[np.int64]:
        """Returns the tokens of its samples, of a dataset of single conversations."""
        return self.member.ask(
            lambda dataset: dataset.padded_lengths(self.numbers) if padded else dataset.lengths(self.numbers)
        )

    def slot_counts(self) -> SlotCounts:
        """Returns what became of the slots of its samples."""
        found: SlotCounts = self.member.ask(lambda dataset: dataset.slot_counts(self.numbers))
        return found

    def announce(self) -> None:
        """Announces its samples, which will be read."""
        self.member.ask(lambda dataset: dataset.will_need(self.numbers.tolist()))


class SourceGroups:
    """The datasets of the sources of a run, and who gives which samples of a batch. Safe from several threads.

    Args:
        timeline: what stands where.
        configs: settings of samples, by sequence length.
        reading: how data are read.
        data: the lock that says where data are and what of them is held out: another one than the timeline's where
            what is held out is read.
        identity: identity of the run.
    """

    def __init__(
        self, timeline: Timeline, configs: Mapping[int, Any], reading: Reading, *, data: RunLock, identity: str
    ) -> None:
        self._timeline = timeline
        self._configs = configs
        self._reading = reading
        self._data_lock = data
        self._held = data is not timeline.lock
        self._identity = identity
        self._denied = DeniedDocuments(timeline.lock)
        self._lookups = Lookups(timeline)
        self._data: dict[int, SourceData] = {}
        self._members: dict[tuple[int, int, int], Member] = {}

    @property
    def num_open_pairs(self) -> int:
        """How many pairs are open."""
        return sum(data.pairs.num_open for data in self._data.values())

    def of(self, positions: NDArray[np.int64]) -> list[SourceGroup]:
        """Returns the samples of a batch by source, in the order of their numbers.

        Raises:
            ConfigError: they are not of one length.
        """
        located = self._lookups.at(positions)
        numbers, sources = located.numbers, located.sources.tolist()
        rows: dict[tuple[int, int], list[int]] = {}
        if self._denied:
            for row, key in enumerate(zip(sources, self._denied.levels(positions, sources), strict=True)):
                rows.setdefault(key, []).append(row)
        elif sources and sources.count(sources[0]) == len(sources):
            member = self._member(sources[0], located.length, 0, set((numbers >> WINDOW_BITS).tolist()))
            return [SourceGroup(member, sources[0], numbers, _ALL)]
        else:
            for row, source in enumerate(sources):
                rows.setdefault((source, 0), []).append(row)
        groups = []
        for (source, level), chosen in sorted(rows.items()):
            at = np.array(chosen, dtype=np.int64)
            own = numbers[at]
            walks = set((own >> WINDOW_BITS).tolist())
            groups.append(SourceGroup(self._member(source, located.length, level, walks), source, own, at))
        return groups

    def _member(self, source: int, length: int, level: int, walks: set[int]) -> Member:
        member = self._members.get((source, length, level))
        if member is not None and walks <= member.walks:
            return member
        with READING_LOCK:
            if source not in self._data:
                self._data[source] = SourceData(self._data_lock, source, self._reading, self._configs[length])
            if (member := self._members.get((source, length, level))) is None:
                member = Member(
                    self._data[source],
                    self._timeline.lock,
                    self._configs[length],
                    denied=self._denied.of(source, level),
                    identity=f"{self._identity} source {source} length {length} denied {level}",
                    held=self._held,
                )
            for walk in walks - member.walks:
                known = self._timeline.walk_of(source, walk)
                member.add_walk(
                    walk, first_pair=known.first_pair, last_pair=known.last_pair, num_windows=known.num_windows
                )
            self._members[source, length, level] = member
            return member


_NEAR = 2048
"""Positions of a batch that differ by less are looked up with those around them."""

_KEPT = 4
"""Lookups that are kept: as many as threads ask for batches in different places, mostly."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What stands at some positions.

    Attributes:
        start, stop: the positions that were looked up, where they are consecutive.
        length: tokens of a sample.
        sources: int32[count], number of the source of each.
        numbers: int64[count], which sample of its source it is: `walk << WINDOW_BITS | window`.
    """

    start: int
    stop: int
    length: int
    sources: NDArray[np.int32]
    numbers: NDArray[np.int64]

    def at(self, positions: NDArray[np.int64]) -> Samples:
        """Returns the same of some of consecutive positions."""
        places = positions - self.start
        return Samples(self.start, self.stop, self.length, self.sources[places], self.numbers[places])


class Lookups:
    """What stands at positions, remembered for the next batches. Safe from several threads.

    Args:
        timeline: what stands where.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lengths = sorted({segment.sequence_length for segment in timeline.segments})
        self._end = MOST_SAMPLES if timeline.num_samples is None else timeline.num_samples
        self._kept: tuple[Samples, ...] = ()
        self._asked = -_NEAR

    def at(self, positions: NDArray[np.int64]) -> Samples:
        """Returns what stands at positions, which are in the run.

        Training asks for positions that lie near each other, batch after batch: from the second of these on, some
        thousand are looked up at once. Others are looked up by themselves.
        """
        if not len(positions):
            return Samples(0, 0, self._lengths[0], np.empty(0, np.int32), positions)
        first, last = bounds_of(positions)
        for chunk in self._kept:
            if chunk.start <= first and last < chunk.stop:
                return chunk.at(positions)
        asked, self._asked = self._asked, last
        if last - first >= _NEAR or abs(first - asked) >= _NEAR:
            return self._look_up(positions, first)
        start = first - first % _NEAR
        end = min(start + 2 * _NEAR, self._end)
        try:
            chunk = self._look_up(np.arange(start, end, dtype=np.int64), start)
        except ConfigError:  # of two lengths, or of a walk too far, perhaps without these
            return self._look_up(positions, first)
        self._kept = (chunk, *self._kept[: _KEPT - 1])
        return chunk.at(positions)

    def _look_up(self, positions: NDArray[np.int64], start: int) -> Samples:
        found = self._timeline.locate(positions)
        length = self._length_of(found)
        numbers = sample_numbers(found.walks, found.windows)
        return Samples(start, start + len(positions), length, found.sources, numbers)

    def _length_of(self, found: Located) -> int:
        if len(self._lengths) == 1:
            return self._lengths[0]
        segments = self._timeline.segments
        numbers: list[int] = np.unique(found.segments).tolist()
        lengths = {number: segments[number].sequence_length for number in numbers}
        if len(set(lengths.values())) > 1:
            first = min(lengths)
            last = next(number for number in numbers if lengths[number] != lengths[first])
            message = (
                f"expected samples of one length in a batch, found {lengths[first]} tokens of stage "
                f"{segments[first].stage!r} and {lengths[last]} of stage {segments[last].stage!r}, "
                f"which begins at position {segments[last].start}"
            )
            raise ConfigError(message, hint="let stages of another sequence length begin where a batch does")
        return next(iter(lengths.values()))
