"""The samples of a batch by source: where they are, and the datasets that give them, made when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.slot_counts import SlotCounts
from tokenloom.datasets.tensors import Sample
from tokenloom.forks import READING_LOCK
from tokenloom.kernels import WINDOW_BITS
from tokenloom.run.denied import DeniedDocuments
from tokenloom.run.lock import RunLock
from tokenloom.run.lookups import Lookups
from tokenloom.run.members import Member, Reading, SourceData
from tokenloom.run.timeline import Timeline

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
