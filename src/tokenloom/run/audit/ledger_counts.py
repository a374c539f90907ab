"""What is in the slots of the samples that a segment reads of a source: from numbers alone where these decide it.

Of conversations whole walks are counted at once, with what they leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.exposure import Exposure
from tokenloom.datasets.joined_conversations import TakenOfPairs
from tokenloom.datasets.ledger import NOTHING, Count
from tokenloom.datasets.slot_counts import SlotCounts, count_conversations, count_windows
from tokenloom.run.audit.occurrences import OccurrenceSearch
from tokenloom.run.dataset import RunDataset
from tokenloom.run.held_out import DeniedDocuments, are_held_out
from tokenloom.run.members import SourceData, run_config
from tokenloom.run.packs import CONVERSATION_CLASSES
from tokenloom.run.plan import PlannedWalks
from tokenloom.run.progress import mixed_size
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.take_maps import Int64s
from tokenloom.run.walk_sizes import are_packs, extra_tokens

Report = Callable[[int], None]
"""Hears how many samples were looked into since it was last told."""

CHUNK_SLOTS = 1 << 20
CHUNK_SAMPLES = 1 << 15
"""What is looked into at a time, at most."""

_WINDOWS_PER_DOCUMENT = 8
"""Windows of a walk whose spans are found in the time in which one document is found in it, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Positions [start, stop) of a segment, as far as they are of one source."""

    segment: int
    source: int
    start: int
    stop: int


class SlotCounter:
    """Counts what is in the slots of samples of a run.

    Args:
        dataset: the run.
        report: hears how far it is.
    """

    def __init__(self, dataset: RunDataset, *, report: Report | None = None) -> None:
        self._dataset = dataset
        self._lock = dataset.lock
        self._timeline = dataset.timeline
        self._report = report
        self._denied = DeniedDocuments(dataset.lock)
        self._search = OccurrenceSearch(dataset.timeline, tokenizer=dataset.tokenizer, reading=dataset.reading)
        self._is_plain = not are_packs(self._lock) and not dataset.counts_need_tokens
        self._walks = WalksOfConversations(dataset) if self._lock.dataset in CONVERSATIONS else None

    def dropped(self, source: int, walks: PlannedWalks, sequence_length: int) -> Dropped:
        """Returns the conversations that walks leave out of samples; none of documents."""
        return Dropped() if self._walks is None else self._walks.dropped(source, walks, sequence_length)

    def needs_looking(self, part: Part) -> bool:
        """Whether samples of a part have to be looked into."""
        return not self._is_plain or self._denied.levels(np.array([part.stop - 1]), [part.source])[0] > 0

    def count(self, part: Part, num_samples: int) -> SlotCounts:
        """Returns what is in the slots of the samples of a part, of which there are so many."""
        if not num_samples:
            return SlotCounts()
        if not self.needs_looking(part):
            return self._windows(part, num_samples)
        starts = [start for start in self._denied.starts(part.source) if part.start < start < part.stop]
        found = SlotCounts()
        for start, stop in zip([part.start, *starts], [*starts, part.stop], strict=True):
            here = Part(segment=part.segment, source=part.source, start=start, stop=stop)
            found += self._count(here, self._denied.levels(np.array([start]), [part.source])[0])
        return found

    def _windows(self, part: Part, num_samples: int) -> SlotCounts:
        length = self._lock.segments[part.segment].sequence_length
        return count_windows(num_samples, sequence_length=length, extra=extra_tokens(self._lock))

    def _count(self, part: Part, level: int) -> SlotCounts:
        """Returns the counts of a part in which so many denials are in force throughout."""
        certain, edges = self._takes(part)
        if self._is_plain and not level:
            num_samples = certain[1] - certain[0] + sum(map(len, self._positions(part, edges)))
            return self._windows(part, num_samples)
        if self._is_plain and (touched := self._touched(part, self._denied.of(part.source, level))) is not None:
            num_samples = certain[1] - certain[0] + sum(map(len, self._positions(part, edges)))
            found = self._windows(part, num_samples - len(touched))
            for first in range(0, len(touched), CHUNK_SAMPLES):
                found += self._read(part, touched[first : first + CHUNK_SAMPLES])
            return found
        found = SlotCounts()
        if self._walks is not None:
            first, stop, walks = self._whole_walks(part, certain)
            if walks.count:
                denied = self._denied.of(part.source, level)
                length = self._lock.segments[part.segment].sequence_length
                found = self._walks.counts(part.source, walks, length, denied=denied)
                edges = [*edges, (certain[0], first), (stop, certain[1])]
                certain = (0, 0)
        for positions in self._positions(part, [certain, *edges]):
            found += self._read(part, positions)
        return found

    def _touched(self, part: Part, documents: Sequence[int]) -> Int64s | None:
        """Returns the positions of a part that hold some documents; None if looking at all samples is less work."""
        entered = self._timeline.entered(part.segment)
        leaf = entered.leaf_of(part.source)
        assert leaf is not None
        if len(documents) > int(entered.num_windows[leaf]) // _WINDOWS_PER_DOCUMENT:
            return None
        return np.unique(self._search.find(part.source, documents, start=part.start, stop=part.stop).positions)

    def _read(self, part: Part, positions: Int64s) -> SlotCounts:
        """Returns the counts of samples of the source of a part, which are looked into."""
        if self._report is not None:
            self._report(len(positions))
        return self._dataset.slot_counts(positions)[part.source]

    def _takes(self, part: Part) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        """Returns the takes of the source that stand in a part, and those of which some may: as ranges."""
        segment, block = self._lock.segments[part.segment], self._lock.mixing_block
        most = mixed_size(segment)

        def given(position: int, *, up: bool) -> int:
            offset = position - segment.start
            offset = (
                min(-(-offset // block) * block, most) if up else offset if offset == most else offset // block * block
            )
            return self._timeline.num_given(part.segment, part.source, offset)

        first, stop = given(part.start, up=True), given(part.stop, up=False)
        low, high = given(part.start, up=False), given(part.stop, up=True)
        if first >= stop:
            return (0, 0), [(low, high)]
        return (first, stop), [(low, first), (stop, high)]

    def _whole_walks(self, part: Part, takes: tuple[int, int]) -> tuple[int, int, PlannedWalks]:
        """Returns the first take of the walks that lie within some takes as a whole, one past the last, and which."""
        entered = self._timeline.entered(part.segment)
        leaf = entered.leaf_of(part.source)
        assert leaf is not None
        size, begin = int(entered.num_windows[leaf]), entered.num_early(leaf) - int(entered.offsets[leaf])
        first = max(-(-(takes[0] - begin) // size), int(entered.offsets[leaf] > 0))
        stop = max((takes[1] - begin) // size, first)
        walks = PlannedWalks(first_pair=0, last_pair=int(entered.num_pairs[leaf]), num_windows=size, count=stop - first)
        return begin + first * size, begin + stop * size, walks

    def _positions(self, part: Part, ranges: list[tuple[int, int]]) -> Iterator[Int64s]:
        """Yields the positions in a part at which takes of some ranges stand, rising, some thousand at a time."""
        length = self._lock.segments[part.segment].sequence_length
        size = max(1, min(CHUNK_SAMPLES, CHUNK_SLOTS // length))
        for low, high in ranges:
            for first in range(low, high, size):
                takes = np.arange(first, min(first + size, high), dtype=np.int64)
                found = self._timeline.positions_of_takes(part.segment, part.source, takes)
                found = np.sort(found[(found >= part.start) & (found < part.stop)])
                if len(found):
                    yield found


Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Conversations that no sample holds, and their tokens.

    Attributes:
        empty: too short to hold an input and a label.
        long: longer than a sample, and not to be truncated.
        untrainable: those without a token to train on.
    """

    empty: Count = NOTHING
    long: Count = NOTHING
    untrainable: Count = NOTHING

    def __add__(self, other: Dropped) -> Dropped:
        if other is NONE_DROPPED:
            return self
        return Dropped(
            empty=self.empty + other.empty,
            long=self.long + other.long,
            untrainable=self.untrainable + other.untrainable,
        )

    def __mul__(self, times: int) -> Dropped:
        return Dropped(empty=self.empty * times, long=self.long * times, untrainable=self.untrainable * times)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Returns conversations and tokens by reason, as `json` writes them."""
        return asdict(self)

    @property
    def tokens(self) -> int:
        """The tokens of all."""
        return self.empty.tokens + self.long.tokens + self.untrainable.tokens


NONE_DROPPED = Dropped()
"""No conversation."""


class WalksOfConversations:
    """What becomes of the conversations of whole walks: one pass over lengths and roles of each pair.

    Args:
        dataset: the run.
    """

    def __init__(self, dataset: RunDataset) -> None:
        self._dataset = dataset
        self._lock = dataset.lock
        self._kind = CONVERSATION_CLASSES[dataset.lock.dataset]
        self._taken: dict[tuple[int, int], tuple[SourceData, TakenOfPairs]] = {}
        self._exposures: dict[tuple[int, int, int], tuple[Exposure, Bools]] = {}

    def dropped(self, source: int, walks: PlannedWalks, sequence_length: int) -> Dropped:
        """Returns the conversations that walks leave out."""
        found = Dropped()
        for number in range(walks.first_pair, walks.last_pair):
            exposure, is_read = self._exposure(source, number, sequence_length)
            found += Dropped(
                empty=exposure.count(exposure.empty & is_read),
                long=exposure.count(exposure.too_long & is_read),
                untrainable=exposure.count(exposure.untrainable & is_read),
            )
        return found * walks.count

    def counts(self, source: int, walks: PlannedWalks, sequence_length: int, *, denied: Sequence[int]) -> SlotCounts:
        """Returns what is in the slots of walks of which every sample is read."""
        data, _ = self._opened(source, sequence_length)
        found, slots = SlotCounts(), 0
        for number in range(walks.first_pair, walks.last_pair):
            exposure, is_read = self._exposure(source, number, sequence_length)
            chosen = np.flatnonzero(exposure.kept & is_read)
            shares = np.empty((len(chosen), 5), dtype=np.int64)
            shares[:, 0], shares[:, 2] = exposure.lengths[chosen], exposure.available[chosen]
            shares[:, 1] = shares[:, 2] - self._kind.reads_ahead
            shares[:, 3], shares[:, 4] = exposure.slots[chosen], exposure.trained[chosen]
            slots += int(shares[:, 3].sum())
            is_denied = np.isin(chosen + data.pairs.first_of(number), np.array(denied, dtype=np.int64))
            found += count_conversations(shares, is_denied, samples=0, slots=0)
        whole = walks.num_windows * sequence_length if self._kind.shares_samples else slots
        found += SlotCounts(samples=walks.num_windows, slots=whole, padding=whole)  # less what conversations take
        return found * walks.count

    def _opened(self, source: int, sequence_length: int) -> tuple[SourceData, TakenOfPairs]:
        if (found := self._taken.get((source, sequence_length))) is None:
            reading = self._dataset.reading
            config = run_config(self._lock, sequence_length, self._dataset.tokenizer, reading)
            data = SourceData(self._lock, source, reading, config)
            taken = self._kind.taken_of(data.pairs, config, name=data.source.name)
            found = self._taken[source, sequence_length] = data, taken
        return found

    def _exposure(self, source: int, number: int, sequence_length: int) -> tuple[Exposure, Bools]:
        """Returns what samples take of the conversations of a pair, and which of them are not held out."""
        key = source, number, sequence_length
        if (found := self._exposures.get(key)) is None:
            data, taken = self._opened(source, sequence_length)
            exposure, first = taken.exposure_of(number), data.pairs.first_of(number)
            documents = np.arange(first, first + len(exposure.lengths), dtype=np.int64)
            is_read = ~are_held_out(self._lock, source, documents)
            found = self._exposures[key] = exposure, is_read
        return found
