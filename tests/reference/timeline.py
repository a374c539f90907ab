"""Which window stands at each position of a run: the readable twin of `Timeline`.

Walks through the positions from 0 and keeps, of each source, the list of what is still to come.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels.mixture import MixedStage, Mixture
from tokenloom.order.walk_order import mixing_key
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock

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
    count: int
    stretch: int = 0  # of a pass that other lengths may go on with
    tokens: int = 0  # of the pass
    first_token: int = 0

    def cut_anew(self, sequence_length: int) -> int:
        """Cuts what comes from the first token on into windows of a length; returns how many there are."""
        self.sequence_length = sequence_length
        self.first_token = -(-self.first_token // sequence_length) * sequence_length
        self.count = max(0, (self.tokens - self.first_token) // sequence_length)
        return self.count


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
        stretch: of the passes that begin.
        rest: the walk over the rest of a pass, of which nothing was read; None for none.
    """

    source: LockedSource
    todo: list[Window] = field(default_factory=list)
    walks: list[Walked] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    num_pairs: int = 0
    sequence_length: int = 0
    phase: int = -1
    stretch: int = 0
    rest: int | None = None

    def forget_what_was_not_begun(self) -> None:
        """Takes passes out of the list that come after the last one of which anything was read."""
        last = max((self.walks[walk].pass_number for walk in self.begun), default=-1)
        self.walks = [walk for walk in self.walks if walk.pass_number <= last]
        self.todo = [window for window in self.todo if window[0] < len(self.walks)]

    def add_walk(self, lock: RunLock, first_pair: int, pass_number: int) -> list[Window]:
        """Returns the windows of a new walk."""
        pairs = self.source.pairs[first_pair : self.num_pairs]
        count = num_windows(lock, pairs, self.sequence_length)
        tokens = sum(pair.num_tokens - pair.held_tokens for pair in pairs)
        tokens -= int(lock.samples.get("add_extra_token_to_sequence", True))
        stretch = 0 if first_pair else self.stretch
        walk = Walked(first_pair, self.num_pairs, pass_number, self.sequence_length, count, stretch, tokens)
        self.walks.append(walk)
        return [(len(self.walks) - 1, window) for window in range(count)]

    def enter(self, lock: RunLock, start: int, sequence_length: int, phase: int, stretch: int) -> None:
        """Gets the list ready for a segment that reads the source."""
        num_pairs = sum(pair.since <= start for pair in self.source.pairs)
        rest = None if self.rest is None else self.walks[self.rest]
        self.forget_what_was_not_begun()
        self.stretch = stretch
        if rest and phase != self.phase and rest.stretch % sequence_length == 0 and rest.cut_anew(sequence_length):
            self.todo = [(self.rest, window) for window in range(rest.count)]
            self.phase, self.sequence_length = phase, sequence_length
        if phase != self.phase:
            self.rest = None
            self.forget_what_was_not_begun()
            self.todo = []
            self.phase, self.sequence_length, self.num_pairs = phase, sequence_length, num_pairs
        elif num_pairs > self.num_pairs:
            self.close_rest()
            before, self.num_pairs = self.num_pairs, num_pairs
            new = num_windows(lock, self.source.pairs[before:num_pairs], sequence_length)
            if self.todo and new:
                joining = self.add_walk(lock, before, self.walks[-1].pass_number)
                lists = [self.todo, joining]
                leaves, takes = Mixture([len(part) for part in lists]).locate(range_of(len(self.todo) + new))
                self.todo = [lists[leaf][take] for leaf, take in zip(leaves, takes, strict=True)]

        if not stretch:
            self.close_rest()

    def close_rest(self) -> None:
        """Lets no other length go on with the rest of a pass."""
        if self.rest is not None:
            self.walks[self.rest].stretch = 0
            self.rest = None

    def leave(self, lock: RunLock, planned: list[Window], read: set[int]) -> None:
        """Makes a walk of its own of the rest of the pass that a segment has read of, behind what it was to read."""
        self.forget_what_was_not_begun()
        shared = [walk for walk in read if self.walks[walk].stretch]
        if not shared:
            return
        self.rest = None
        last = self.walks[max(shared)]
        head = len({window for walk, window in planned if walk == max(shared)}) or last.count
        self.todo = [(walk, window) for walk, window in self.todo if walk != max(shared) or window < head]
        rest = replace(last, first_token=last.first_token + head * last.sequence_length)
        for walk in self.walks[: max(shared) + 1]:
            walk.stretch = 0
        if rest.cut_anew(last.sequence_length):
            self.rest = len(self.walks)
            self.walks.append(rest)
            self.todo += [(self.rest, window) for window in range(rest.count)]

    def next(self, lock: RunLock) -> Window:
        """Takes the next window out of the list."""
        if not self.todo:
            self.todo = self.add_walk(lock, 0, self.walks[-1].pass_number + 1 if self.walks else 0)
        return self.todo.pop(0)


def range_of(stop: int, start: int = 0) -> NDArray[np.int64]:
    """Returns numbers as kernels want them."""
    return np.arange(start, stop, dtype=np.int64)


def planned_windows(lock: RunLock, segment: LockedSegment, streams: list[Stream]) -> list[list[Window]]:
    """Returns what each source gives in a segment that is read as it was planned; nothing of one without an end."""
    size = segment.num_samples if segment.planned is None else segment.planned
    if not segment.stretch_length or size is None or size >= 2**60:
        return [[] for _ in streams]
    counts = Mixture([weight for _, weight in segment.weights]).counts(size).tolist()
    copies = deepcopy(streams)
    return [[copied.next(lock) for _ in range(count)] for copied, count in zip(copies, counts, strict=True)]


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
            streams[source].enter(lock, segment.start, sequence_length, phase, segment.stretch_length or 0)
        size = stop if segment.num_samples is None else segment.num_samples
        mixed_as = segment.mixed_as or (segment.num_samples if segment.num_samples is not None else 2**60)
        weights = [weight for _, weight in segment.weights]
        planned = planned_windows(lock, segment, [streams[source] for source in sources])
        before = len(found)
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
        if segment.stretch_length:
            for source, windows in zip(sources, planned, strict=True):
                streams[source].leave(lock, windows, {row[2] for row in found[before:] if row[1] == source})
    return found[:stop], streams
