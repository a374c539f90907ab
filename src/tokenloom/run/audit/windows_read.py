"""Which windows of each source stand in a range of positions: as ranges, by arithmetic over the lock.

A source gives its windows in order, but for what a cut has left over and what growth has merged; mixing blocks permute
positions within themselves only. So what a range of positions reads of a source is a few ranges of windows, and single
windows of the mixing blocks at its ends. No window is read twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.kernels import MixedStage
from tokenloom.run.digest import content_of
from tokenloom.run.lock import LockedSource
from tokenloom.run.progress import Entered, Progress, Walk, mixed_size
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
    """

    sequence_length: int
    first_pair: int
    last_pair: int
    num_windows: int
    content: str


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
    for number, segment in enumerate(timeline.segments):
        first = max(start - segment.start, 0)
        last = stop - segment.start if segment.num_samples is None else min(stop - segment.start, segment.num_samples)
        if first < last:
            mixed = reading.progress.mixed(segment)
            reading.add(timeline.entered(number), mixed, first, last, mixed_size(segment), wanted)
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
        self.progress = Progress(timeline.lock.sources, timeline.lock)
        self.found: dict[int, dict[Cut, Ranges]] = {}
        self._timeline = timeline
        self._block = timeline.lock.mixing_block
        self._contents: dict[tuple[int, int, int, int], str] = {}

    def add(
        self, entered: Entered, mixed: MixedStage, first: int, stop: int, size: int, wanted: set[int] | None
    ) -> None:
        """Adds what offsets [first, stop) of a segment read, of which mixing blocks go by `size`."""
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
            self._of(source, walk).append((base + max(first, num_early), base + stop))

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
