"""From documents to the positions that read them, past and to come: the inverse of the order, by arithmetic.

What a range of positions reads of a source is a few ranges of windows, and single windows of the mixing blocks at its
ends: a source gives its windows in order, but for what a cut has left over and what growth has merged, and mixing
blocks permute positions within themselves only. No window is read twice.

A walk through a source is a permutation of its windows; which window a token falls into takes the sum of what comes
before its document, and where that window stands is the inverse of the mixture. Nothing is kept per walk, and nothing
is read but the lengths of the pairs that the documents lie in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import WHOLE_PASS, PassPart, sample_numbers
from tokenloom.order.walk_order import Occurrences
from tokenloom.order.windows import SpanBatch
from tokenloom.run.audit.span_table import Int64s, PairRows, SpanTable
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import content_of, run_identity
from tokenloom.run.lock import MOST_SAMPLES, LockedSource, RunLock
from tokenloom.run.progress import MOST_WALKS, Entered, Walk, mixed_size, too_many_walks
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.take_maps import WindowRange
from tokenloom.run.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How walks cut data into windows. Walks of one number and cut through sources of one name have the same windows.

    That holds in two runs, too, if these have the seed and settings of samples in common.

    Attributes:
        sequence_length: tokens of a window.
        first_pair, last_pair: the pairs of the source that a walk goes over.
        num_windows: windows of a walk.
        content: SHA-256, in hex, over what is known of the content of these pairs.
        part: what a walk is of a pass that windows of several lengths share.
    """

    sequence_length: int
    first_pair: int
    last_pair: int
    num_windows: int
    content: str
    part: PassPart


Ranges = list[tuple[int, int]]
"""Ranges [first, stop) of `walk * num_windows + window`, rising and apart."""


def windows_read(
    timeline: Timeline, start: int, stop: int, *, sources: Iterable[int] | None = None
) -> dict[int, dict[Cut, Ranges]]:
    """Returns the windows that stand at positions [start, stop), by source and cut.

    Takes time with segments, sources and mixing blocks that are cut by the range, not with positions.
    """
    reading = _Reading(timeline)
    wanted = None if sources is None else set(sources)
    for number, segment in enumerate(timeline.lock.segments):
        first = max(start - segment.start, 0)
        last = stop - segment.start if segment.num_samples is None else min(stop - segment.start, segment.num_samples)
        if first < last:
            reading.add(number, first, last, mixed_size(segment), wanted)
    found = sorted(reading.found.items())
    return {source: {cut: _joined(ranges) for cut, ranges in cuts.items()} for source, cuts in found}


def num_tokens_of(read: dict[Cut, Ranges]) -> int:
    """Returns their tokens, where each window counts as many as a sample has."""
    return sum((stop - first) * cut.sequence_length for cut, ranges in read.items() for first, stop in ranges)


def common(read: dict[Cut, Ranges], other: dict[Cut, Ranges]) -> dict[Cut, Ranges]:
    """Returns the windows that are in both."""
    return {cut: list(_overlaps(ranges, other[cut])) for cut, ranges in read.items() if cut in other}


class _Reading:
    def __init__(self, timeline: Timeline) -> None:
        self.found: dict[int, dict[Cut, Ranges]] = {}
        self._timeline = timeline
        self._block = timeline.lock.mixing_block
        self._contents: dict[tuple[int, int, int, int], str] = {}

    def add(self, number: int, first: int, stop: int, size: int, wanted: set[int] | None) -> None:
        """Adds what offsets [first, stop) of a segment read, of which mixing blocks go by `size`."""
        entered, mixed = self._timeline.entered(number), self._timeline.mixed(number)
        begin = min(-(-first // self._block) * self._block, size)
        end = stop if stop == size else stop // self._block * self._block
        if begin >= end:
            single = np.arange(first, stop, dtype=np.int64)
            befores = afters = [0] * len(entered.sources)
        else:
            ends = np.arange(first, begin, dtype=np.int64), np.arange(end, stop, dtype=np.int64)
            single = np.concatenate(ends)
            befores, afters = mixed.counts(begin).tolist(), mixed.counts(end).tolist()
        leaves, takes = mixed.locate(single)
        for leaf, source in enumerate(entered.sources.tolist()):
            if wanted is None or source in wanted:
                self._add_takes(entered, leaf, source, befores[leaf], afters[leaf])
                for first_take, last_take in _runs(np.sort(takes[leaves == leaf]).tolist()):
                    self._add_takes(entered, leaf, source, first_take, last_take)

    def _add_takes(self, entered: Entered, leaf: int, source: int, first: int, stop: int) -> None:
        num_early = entered.num_early(leaf)
        if first < min(stop, num_early):
            for window_range in entered.early[leaf].ranges(first, min(stop, num_early)):
                self._add_range(source, window_range)
        if max(first, num_early) < stop:
            walk = entered.regular_walk(leaf, int(entered.walks[leaf]))
            base = walk.number * walk.num_windows + int(entered.offsets[leaf]) - num_early
            begin, end = base + max(first, num_early), base + stop
            last = (end - 1) // walk.num_windows
            if walk.part != WHOLE_PASS and (planned := self._timeline.walk_of(source, last)).part != walk.part:
                middle = max(begin, last * walk.num_windows)
                self._of(source, planned).append((middle, end))
                end = middle
            if begin < end:
                self._of(source, walk).append((begin, end))

    def _add_range(self, source: int, window_range: WindowRange) -> None:
        number, first, stop = window_range
        walk = self._timeline.walk_of(source, number)
        base = number * walk.num_windows
        self._of(source, walk).append((base + first, base + stop))

    def _of(self, source: int, walk: Walk) -> Ranges:
        asked = source, walk.sequence_length, walk.first_pair, walk.last_pair
        if (content := self._contents.get(asked)) is None:
            content = self._contents[asked] = _content(self._timeline.lock.sources[source], *asked[1:])
        cut = Cut(
            sequence_length=walk.sequence_length,
            first_pair=walk.first_pair,
            last_pair=walk.last_pair,
            num_windows=walk.num_windows,
            content=content,
            part=walk.part,
        )
        return self.found.setdefault(source, {}).setdefault(cut, [])


def _content(source: LockedSource, length: int, first_pair: int, last_pair: int) -> str:
    pairs = source.pairs[first_pair:last_pair]
    facts = [[*content_of(pair), [packs for packs in pair.packs if packs[0] == length]] for pair in pairs]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields rising numbers as ranges."""
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[first], numbers[place - 1] + 1
            first = place


def _joined(ranges: Ranges) -> Ranges:
    """Returns ranges that do not overlap, rising and apart."""
    joined: Ranges = []
    for first, stop in sorted(ranges):
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((first, stop))
    return joined


def _overlaps(ranges: Ranges, others: Ranges) -> Iterator[tuple[int, int]]:
    place = 0
    for first, stop in ranges:
        while place < len(others) and others[place][1] <= first:
            place += 1
        at = place
        while at < len(others) and others[at][0] < stop:
            yield max(first, others[at][0]), min(stop, others[at][1])
            at += 1


Documents = Sequence[int] | NDArray[np.integer[Any]]
"""Numbers of documents of a source."""

_MOST_AT_ONCE = 1 << 18
"""Documents times walks that are looked for at a time."""


class OccurrenceSearch:
    """Where documents of a run are read. Pairs are opened when one of their documents is asked for, and stay open."""

    def __init__(self, dataset: RunDataset) -> None:
        self._timeline = dataset.timeline
        self._groups = dataset.groups
        self._pair_rows = PairRows.of_lock(dataset.lock)
        self._identity = run_identity(dataset.lock)

    def find(self, source: int, documents: Documents, *, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns all spans of documents at positions [start, stop), in the order of positions and of their samples.

        Documents that are held out, or empty, have none. A document that is denied keeps its spans: from the denial on
        they are marked, and padding stands there.
        """
        lock = self._timeline.lock
        wanted = checked_documents(lock, source, documents)
        first, last = checked_range(self._timeline.num_samples, start, stop)
        found = []
        if len(wanted) and first < last:
            read = windows_read(self._timeline, first, self._block_end(last), sources=[source])
            for cut, ranges in read.get(source, {}).items():
                for walks, passes in self._walks(source, cut, ranges, len(wanted)):
                    occurrences = self._occurrences(source, cut.sequence_length, walks, wanted)
                    found.append(self._placed(source, cut, occurrences, walks, passes, first, last))
        return self._table(source, found)

    def _block_end(self, stop: int) -> int:
        """Returns the end of the mixing block that ends at a position or behind it; what is read of it is ranges."""
        starts = [segment.start for segment in self._timeline.lock.segments if segment.start < stop]
        block = self._timeline.lock.mixing_block
        return starts[-1] - (starts[-1] - stop) // block * block

    def _walks(self, source: int, cut: Cut, ranges: Ranges, num_documents: int) -> Iterator[tuple[Int64s, Int64s]]:
        """Yields the walks that windows are of, a few at a time, and their passes, after telling the order of them."""
        size = cut.num_windows
        order = self._groups.member(source, cut.sequence_length).order
        if (last := max(stop - 1 for _, stop in ranges) // size) >= MOST_WALKS:
            raise too_many_walks(self._timeline.lock.sources[source].name, "the last position that is asked for", last)
        walks = np.unique(np.concatenate([np.arange(a // size, (b - 1) // size + 1) for a, b in ranges]))
        at_once = max(1, _MOST_AT_ONCE // num_documents)
        for run in np.split(walks, np.flatnonzero(np.diff(walks) > 1) + 1):  # others lie between
            begin = self._timeline.walk_of(source, int(run[0]))
            order.add_walks(begin.number, begin.first_pair, begin.last_pair, begin.num_windows, begin.part)
            passes = run - run[0] + begin.pass_number
            for at in range(0, len(run), at_once):
                yield run[at : at + at_once], passes[at : at + at_once]

    def _occurrences(self, source: int, length: int, walks: Int64s, documents: Int64s) -> Occurrences:
        member = self._groups.member(source, length)
        found = member.order.occurrences(walks, documents)
        if self._timeline.lock.dataset not in CONVERSATIONS or not len(found.walks):
            return found
        # The order counts slots, or one for a conversation; of tokens a sample takes as many in every walk.
        some, first = np.unique(found.documents, return_index=True)
        numbers = sample_numbers(found.walks[first], found.windows[first])
        spans: SpanBatch = member.ask(lambda dataset: dataset.span_batch(numbers))
        by_document = np.argsort(spans.documents, kind="stable")
        places = by_document[np.searchsorted(spans.documents[by_document], some)]
        lengths = spans.lengths[places][np.searchsorted(some, found.documents)]
        return found._replace(starts=np.zeros_like(lengths), lengths=lengths)

    def _placed(
        self, source: int, cut: Cut, found: Occurrences, walks: Int64s, passes: Int64s, start: int, stop: int
    ) -> dict[str, NDArray[Any]]:
        """Returns what of it stands in [start, stop), as columns of a table."""
        positions = self._timeline.positions_of(source, found.walks, found.windows, sequence_length=cut.sequence_length)
        inside = np.flatnonzero((positions >= start) & (positions < stop))
        return {
            "positions": positions[inside],
            "passes": passes[np.searchsorted(walks, found.walks[inside])],
            **{name: column[inside] for name, column in found._asdict().items()},
        }

    def _table(self, source: int, found: Sequence[dict[str, NDArray[Any]]]) -> SpanTable:
        names = ("positions", "passes", *Occurrences._fields)
        empty = np.empty(0, dtype=np.int64)
        columns: dict[str, Any] = {name: np.concatenate([empty, *(part[name] for part in found)]) for name in names}
        in_order = np.lexsort((columns["slots"], columns["positions"]))
        columns = {name: column[in_order] for name, column in columns.items()}
        lock, positions = self._timeline.lock, columns["positions"]
        starts = np.array([segment.start for segment in lock.segments], dtype=np.int64)
        return SpanTable(
            **columns,
            segments=(np.searchsorted(starts, positions, side="right") - 1).astype(np.int32),
            sources=np.full(len(positions), source, dtype=np.int32),
            denied=positions >= denied_from(lock, source, columns["documents"]),
            source_names=tuple(each.name for each in lock.sources),
            stage_names=tuple(segment.stage for segment in lock.segments),
            pair_rows=self._pair_rows,
            run=self._identity,
        )


def checked_documents(lock: RunLock, source: int, documents: Documents) -> Int64s:
    """Returns documents of a source, rising: int64[num_documents], each once."""
    wanted = np.unique(np.asarray(documents, dtype=np.int64))
    count = sum(pair.num_documents for pair in lock.sources[source].pairs)
    if len(wanted) and not 0 <= (wrong := int(wanted[0] if wanted[0] < 0 else wanted[-1])) < count:
        message = f"expected a document of source {lock.sources[source].name!r} in [0, {count}), found {wrong}"
        raise ConfigError(message, hint="documents are numbered over the pairs of a source, as in run.lock")
    return wanted


def checked_range(num_samples: int | None, start: int, stop: int | None) -> tuple[int, int]:
    """Returns the positions that are asked for, up to the end of the run."""
    if stop is None:
        if num_samples is None:
            message = "expected a position to stop at, found none, and the last stage of the run has no end"
            raise ConfigError(message, hint="say up to which position or step documents are looked for")
        stop = num_samples
    if not 0 <= start <= stop:
        message = f"expected positions from 0 on, and `stop` behind `start`, found [{start}, {stop})"
        raise ConfigError(message)
    if num_samples is None and stop > MOST_SAMPLES:
        message = f"expected a position up to {MOST_SAMPLES}, which no run goes beyond, found {stop}"
        raise ConfigError(message)
    return start, stop if num_samples is None else min(stop, num_samples)


def denied_from(lock: RunLock, source: int, documents: Int64s) -> Int64s:
    """Returns the first position at which each document of a source is denied: int64[count], 2**62 where it is not."""
    first = np.full(len(documents), 1 << 62, dtype=np.int64)
    for denial in lock.denials:
        for number, denied in denial.documents:
            if number == source:
                first[np.isin(documents, denied)] = np.minimum(first[np.isin(documents, denied)], denial.start)
    return first
