"""Which window stands at each position of a run: the readable twin of `Timeline`.

Walks through the positions from 0 and keeps, of each source, the list of what is still to come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import MixedStage, Mixture
from tokenloom.order.computed_keys import mixing_key
from tokenloom.run.lock import LockedPair, LockedSource, RunLock

Window = tuple[int, int]
"""A walk and a window in it."""


def num_windows(lock: RunLock, pairs: tuple[LockedPair, ...], sequence_length: int) -> int:
    """Returns the windows of a walk over pairs."""
    if lock.windows == "best_fit" or lock.dataset in ("sft", "varlen"):
        return sum(dict(pair.packs)[sequence_length] for pair in pairs)
    tokens = sum(pair.num_tokens - pair.held_tokens for pair in pairs)
    extra = int(lock.samples.get("add_extra_token_to_sequence", True))
    return max(0, (tokens - extra) // sequence_length)


@dataclass
class Walked:
    """A walk that stands in the list of its source."""

    first_pair: int
    last_pair: int
    pass_number: int
    sequence_length: int


@dataclass
class Stream:
    """What is still to come of a source.

    Attributes:
        source: the source.
        todo: windows, the next one first.
        walks: what is known of each walk, by number.
        begun: walks of which a window was read.
        num_pairs: pairs of the walks that follow.
        sequence_length: tokens of a window; 0 before the first phase.
        phase: the phase that it was last read in.
    """

    source: LockedSource
    todo: list[Window] = field(default_factory=list)
    walks: list[Walked] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    num_pairs: int = 0
    sequence_length: int = 0
    phase: int = -1

    def forget_what_was_not_begun(self) -> None:
        """Takes passes out of the list that come after the last one of which anything was read."""
        last = max((self.walks[walk].pass_number for walk in self.begun), default=-1)
        self.walks = [walk for walk in self.walks if walk.pass_number <= last]
        self.todo = [window for window in self.todo if window[0] < len(self.walks)]

    def add_walk(self, lock: RunLock, first_pair: int, pass_number: int) -> list[Window]:
        """Returns the windows of a new walk."""
        self.walks.append(Walked(first_pair, self.num_pairs, pass_number, self.sequence_length))
        count = num_windows(lock, self.source.pairs[first_pair : self.num_pairs], self.sequence_length)
        return [(len(self.walks) - 1, window) for window in range(count)]

    def enter(self, lock: RunLock, start: int, sequence_length: int, phase: int) -> None:
        """Gets the list ready for a segment that reads the source."""
        num_pairs = sum(pair.since <= start for pair in self.source.pairs)
        if phase != self.phase:
            self.forget_what_was_not_begun()
            self.todo = []
            self.phase, self.sequence_length, self.num_pairs = phase, sequence_length, num_pairs
        elif num_pairs > self.num_pairs:
            self.forget_what_was_not_begun()
            before, self.num_pairs = self.num_pairs, num_pairs
            new = num_windows(lock, self.source.pairs[before:num_pairs], sequence_length)
            if self.todo and new:
                joining = self.add_walk(lock, before, self.walks[-1].pass_number)
                lists = [self.todo, joining]
                leaves, takes = Mixture([len(part) for part in lists]).locate(range_of(len(self.todo) + new))
                self.todo = [lists[leaf][take] for leaf, take in zip(leaves, takes, strict=True)]

    def next(self, lock: RunLock) -> Window:
        """Takes the next window out of the list."""
        if not self.todo:
            self.todo = self.add_walk(lock, 0, self.walks[-1].pass_number + 1 if self.walks else 0)
        return self.todo.pop(0)


def range_of(stop: int, start: int = 0) -> NDArray[np.int64]:
    """Returns numbers as kernels want them."""
    return np.arange(start, stop, dtype=np.int64)


def run_through(lock: RunLock, stop: int) -> tuple[list[tuple[int, int, int, int]], list[Stream]]:
    """Returns (segment, source, walk, window) of the first positions, and what is still to come of each source."""
    streams = [Stream(source) for source in lock.sources]
    found: list[tuple[int, int, int, int]] = []
    phase, sequence_length = -1, 0
    for number, segment in enumerate(lock.segments):
        if segment.start >= stop:
            break
        if segment.sequence_length != sequence_length:
            phase, sequence_length = phase + 1, segment.sequence_length
        sources = [source for source, _ in segment.weights]
        for source in sources:
            streams[source].enter(lock, segment.start, sequence_length, phase)
        size = stop if segment.num_samples is None else segment.num_samples
        mixed_as = segment.mixed_as or (segment.num_samples if segment.num_samples is not None else 2**60)
        weights = [weight for _, weight in segment.weights]
        mixed = MixedStage(weights, segment.start, mixed_as, lock.mixing_block, mixing_key(lock.seed))
        for first in range(0, size, lock.mixing_block):
            block = range_of(min(first + lock.mixing_block, mixed_as), first)
            leaves, takes = mixed.locate(block)
            # the takes of each source in this block follow each other, so its windows are taken out of its list
            places = sorted(range(len(block)), key=lambda place: (leaves[place], takes[place]))
            windows = [(-1, -1)] * len(block)
            for place in places:
                windows[place] = streams[sources[leaves[place]]].next(lock)
            unread = []
            for place, offset in enumerate(block):
                source, window = sources[leaves[place]], windows[place]
                if offset < size:
                    found.append((number, source, *window))
                    streams[source].begun.add(window[0])
                else:
                    unread.append((source, int(takes[place]), window))
            for source, _, window in sorted(unread, reverse=True):  # back to where they were
                streams[source].todo.insert(0, window)
    return found[:stop], streams
