"""The progress of each source: the windows that it gave before a segment decide which it gives in the segment.

A *walk* reads the windows of some pairs of a source once, in shuffled order; a *regular* walk reads all pairs.
*Take* n of a source is the n-th window that the source gives in a segment. A *leaf* is a source's index in a segment.

Segments are entered and left in order. If a segment is cut within a mixing block, each source begins later segments
with its unread windows of that block. So no window is lost or repeated, and nothing before the cut changes.

A *phase* is a series of segments of one sequence length. If the lock knows in advance that another length follows,
passes continue in the next phase: passes are cut into stretches of the longest length (`PassPart`), each segment reads
as many whole stretches as planned, and the next segment begins a walk over the rest of the pass. Otherwise each phase
begins a new walk of every source.

If a source gained pairs during a pass, a walk over the new pairs is merged with the rest of the pass, and both end
together. New pairs that are too small for a window wait for the next walk.

So a source first gives the windows of a finite map (`TakeMap`), then regular walks in ascending order (`Entered`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels.mixture import MixedStage, Mixture
from tokenloom.kernels.walks import WHOLE_PASS, PassPart
from tokenloom.order.walk_order import mixing_key
from tokenloom.run.lock import MOST_SAMPLES, Int64s, LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.settings import CONVERSATIONS, RunSettings

MOST_WALKS = 1 << 22  # maximum number of walks of a source in a run
MOST_WINDOWS = 1 << 40  # maximum number of windows per walk; a sample's number is `walk << 40 | window`

Windows = tuple[Int64s, Int64s]  # walk numbers, and window numbers in these walks
WindowRange = tuple[int, int, int]  # (walk, first window, one past the last window)


@dataclass(frozen=True, slots=True, eq=False)
class TakeMap:
    """A finite map from takes (the n-th window that a source gives is take n) to windows; no window occurs twice.

    Attributes:
        parts: int64[num_parts, 3], in the order of takes: walk, first window, one past the last window. A walk below 0
            stands for `merges[-1 - walk]`: the other two numbers are then a range of takes of that map.
        merges: evenly mixed maps.
    """

    parts: Int64s
    merges: tuple[_Merge, ...] = ()

    @classmethod
    def of(cls, *ranges: WindowRange) -> TakeMap:
        return cls(np.array(ranges, dtype=np.int64).reshape(-1, 3))

    @classmethod
    def merged(cls, maps: Sequence[TakeMap]) -> TakeMap:
        """Mixes non-empty maps evenly, so that all end together."""
        return cls(TakeMap.of((-1, 0, sum(map(len, maps)))).parts, (_Merge(maps),))

    def __len__(self) -> int:
        return int((self.parts[:, 2] - self.parts[:, 1]).sum())

    def __add__(self, later: TakeMap) -> TakeMap:
        parts = later.parts.copy()
        parts[parts[:, 0] < 0, 0] -= len(self.merges)
        return TakeMap(np.concatenate([self.parts, parts]), self.merges + later.merges)

    def rest(self, first: int) -> TakeMap:
        parts = self.parts.copy()
        parts[:, 1] = np.maximum(parts[:, 1], parts[:, 2] - (self._ends() - first))
        return TakeMap(parts[parts[:, 1] < parts[:, 2]], self.merges)

    def _ends(self) -> Int64s:
        return np.cumsum(self.parts[:, 2] - self.parts[:, 1])

    def locate(self, takes: Int64s) -> Windows:
        """Returns the walk and window of each take; every take must be in the map."""
        if len(self.parts) == 1:  # the common case, in half the time
            walk, first = self.parts.item(0), self.parts.item(1)
            if walk < 0:
                return self.merges[-1 - walk].locate(takes + first)
            return np.full(takes.shape, walk, dtype=np.int64), takes + first
        ends = self._ends()
        rows = np.searchsorted(ends, takes, side="right")
        walks, windows = self.parts[rows, 0], self.parts[rows, 2] - ends[rows] + takes
        for number, merge in enumerate(self.merges):
            if len(here := np.flatnonzero(walks == -1 - number)):
                walks[here], windows[here] = merge.locate(windows[here])
        return walks, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 for windows that are not in the map."""
        ends, keys = self._ends(), self.parts[:, 0] * MOST_WINDOWS + self.parts[:, 1]
        order = np.argsort(keys)
        before = np.searchsorted(keys, walks * MOST_WINDOWS + windows, side="right", sorter=order) - 1
        rows = order[np.maximum(before, 0)]
        walk, first, stop = self.parts[rows].T
        there = (walks == walk) & (walks >= 0) & (windows >= first) & (windows < stop)
        found: Int64s = np.where(there, windows - stop + ends[rows], -1)
        for (number, begin, end), stop in zip(self.parts.tolist(), ends.tolist(), strict=True):
            if number < 0:
                inside = self.merges[-1 - number].takes(walks, windows)
                here = (inside >= begin) & (inside < end)
                found[here] = inside[here] - end + stop
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        """Yields the window ranges of takes [first, stop) in any order."""
        for (walk, begin, end), behind in zip(self.parts.tolist(), self._ends().tolist(), strict=True):
            low, high = max(begin, end - behind + first), min(end, end - behind + stop)
            if low < high:
                yield from self.merges[-1 - walk].ranges(low, high) if walk < 0 else [(walk, low, high)]


class _Merge:
    """Evenly mixed maps, with the methods of `TakeMap`."""

    def __init__(self, maps: Sequence[TakeMap]) -> None:
        self._maps, self._mixture = maps, Mixture(list(map(len, maps)))

    def locate(self, takes: Int64s) -> Windows:
        walks, windows = np.empty_like(takes), np.empty_like(takes)
        numbers, inside = self._mixture.locate(takes)
        for number, each in enumerate(self._maps):
            if len(here := np.flatnonzero(numbers == number)):
                walks[here], windows[here] = each.locate(inside[here])
        return walks, windows

    def takes(self, walks: Int64s, windows: Int64s) -> Int64s:
        found = np.full(walks.shape, -1, dtype=np.int64)
        for number, each in enumerate(self._maps):
            inside = each.takes(walks, windows)
            here = np.flatnonzero(inside >= 0)
            found[here] = self._mixture.positions(np.full(len(here), number, dtype=np.int32), inside[here])
        return found

    def ranges(self, first: int, stop: int) -> Iterator[WindowRange]:
        bounds = self._mixture.counts(first).tolist(), self._mixture.counts(stop).tolist()
        for each, begin, end in zip(self._maps, *bounds, strict=True):
            yield from each.ranges(begin, end)


_NOTHING = TakeMap.of()


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One walk of a source: reads the windows of pairs [first_pair, last_pair) once.

    A walk over pairs that were added during a pass belongs to that pass. `part` is the part of the pass that the walk
    reads, if the pass continues at another sequence length.
    """

    number: int
    first_pair: int
    last_pair: int
    num_windows: int
    pass_number: int
    sequence_length: int
    part: PassPart = WHOLE_PASS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entered:
    """The windows that each source gives in a segment: first the takes of `early`, then regular walks.

    Arrays are int64[num_leaves]; a leaf is the index of a source in the segment.

    Attributes:
        segment: the segment as it was entered; its end may change later.
        sources: indices of the sources, ascending.
        walks, passes: index of the first regular walk; index of the pass that this walk reads.
        offsets: index of the next window in the first regular walk; 0 if this walk has not begun.
        num_windows, num_pairs, num_tokens: size of a regular walk; `num_tokens` is empty without stretches.
        early: by leaf, a map of the takes before the regular walks, all from passes already begun.
        early_counts: number of takes in `early`.
        unread: by leaf, the number of passes left unread by changes of sequence length.
        taken_over: by leaf, number of windows in the rest of a pass that began with another sequence length.
    """

    segment: LockedSegment
    phase: int
    sources: Int64s
    walks: Int64s
    offsets: Int64s
    num_windows: Int64s
    num_pairs: Int64s
    passes: Int64s
    early: Mapping[int, TakeMap]
    early_counts: Int64s
    unread: Mapping[int, Fraction]
    taken_over: Mapping[int, int]
    num_tokens: Int64s

    def regular_walk(self, leaf: int, number: int) -> Walk:
        part, length = WHOLE_PASS, self.segment.stretch_length
        if length is not None:
            part = PassPart(num_tokens=int(self.num_tokens[leaf]), stretch_length=length)
        return Walk(
            number=number,
            first_pair=0,
            last_pair=int(self.num_pairs[leaf]),
            num_windows=int(self.num_windows[leaf]),
            pass_number=int(self.passes[leaf]) + number - int(self.walks[leaf]),
            sequence_length=self.segment.sequence_length,
            part=part,
        )

    def locate(self, leaves: NDArray[np.int32], takes: Int64s) -> Windows:
        """Returns the walk and window of each take; take 0 is the source's first window in the segment."""
        later = takes - self.early_counts[leaves] if self.early else takes
        walks, windows = np.divmod(later + self.offsets[leaves], self.num_windows[leaves])
        walks += self.walks[leaves]
        if not self.early:
            return walks, windows
        early = np.flatnonzero(later < 0)
        early = early[np.argsort(leaves[early], kind="stable")]
        bounds = np.flatnonzero(np.diff(leaves[early], prepend=-1, append=-1))
        for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            here = early[first:stop]
            walks[here], windows[here] = self.early[int(leaves[here[0]])].locate(takes[here])
        return walks, windows

    def takes(self, leaf: int, walks: Int64s, windows: Int64s) -> Int64s:
        """Returns the take of each window; -1 for windows that do not exist, or were given before the segment."""
        walk, size = int(self.walks[leaf]), int(self.num_windows[leaf])
        found = (walks - walk) * size + windows - int(self.offsets[leaf])
        found[(walks < walk) | (windows < 0) | (windows >= size) | (found < 0)] = -1
        if leaf not in self.early:
            return found
        early = self.early[leaf].takes(walks, windows)
        return np.where(early >= 0, early, np.where(found >= 0, found + self.early_counts[leaf], -1))

    def left_of_pass(self, leaf: int) -> int:
        offset = int(self.offsets[leaf])
        return int(self.early_counts[leaf]) + (int(self.num_windows[leaf]) - offset if offset else 0)

    def takes_within(self, leaf: int, max_passes: int) -> int:
        """Returns how many windows a source may give within `max_passes`; windows left unread use up no passes."""
        size, left, unread = int(self.num_windows[leaf]), self.left_of_pass(leaf), self.unread.get(leaf)
        passes = max_passes - int(self.passes[leaf]) - (int(self.offsets[leaf]) > 0)
        if not unread:  # a pass that has begun is read to its end even if the cap was lowered
            return left + max(0, passes) * size
        return max(0, left + math.floor((passes + unread) * size))


def _in_windows(rest: Walk, sequence_length: int) -> Walk | None:
    """Cuts the rest of a pass into windows; None if there are none, or a stretch is not a whole number of windows."""
    part = rest.part
    begin = -(-part.first_token // sequence_length)
    num_windows = part.num_tokens // sequence_length - begin
    if part.stretch_length % sequence_length or num_windows < 1:
        return None
    part = part._replace(first_token=begin * sequence_length)
    return replace(rest, num_windows=num_windows, sequence_length=sequence_length, part=part)


class Progress:
    """The progress of all sources of a run; `enter` and `leave` advance it by one segment."""

    def __init__(self, sources: Sequence[LockedSource], settings: RunSettings | RunLock) -> None:
        self.sizes: WalkSizes = WalkSizes(sources, settings)
        self.special: dict[tuple[int, int], Walk] = {}
        """Walks over new pairs alone or over a part of a pass, by (source, number of the walk)."""
        self.unread: dict[int, Fraction] = {}  # by source, the number of passes left unread by changes of length
        self._sources = sources
        self._block = settings.mixing_block
        self._key = mixing_key(settings.seed)
        self._sequence_length = 0
        self._phase = -1
        count = len(sources)
        self._phases = np.full(count, -1, dtype=np.int64)
        self._walks, self._offsets, self._num_windows, self._num_pairs, self._passes = np.zeros((5, count), np.int64)
        self._early: dict[int, TakeMap] = {}
        self._rests: dict[int, Walk] = {}  # by source, the rest of its pass after the early takes, as an unread walk
        self._planned: dict[int, int] = {}  # by source, index of the regular walk that a planned end interrupts

    def mixed(self, segment: LockedSegment) -> MixedStage:
        weights = [weight for _, weight in segment.weights]
        return MixedStage(weights, segment.start, mixed_size(segment), self._block, self._key)

    def num_begun(self, source: int) -> int:
        return int(self._passes[source]) + (int(self._offsets[source]) > 0)

    def left_of_pass(self, source: int) -> int:
        offset, rest = int(self._offsets[source]), self._rests.get(source)
        left = int(self._num_windows[source]) - offset if offset else 0
        return left + len(self._early.get(source, _NOTHING)) + (0 if rest is None else rest.num_windows)

    def copy(self) -> Progress:
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, np.ndarray)):
                setattr(other, name, value.copy())
        return other

    def _give_up(self, source: int, taken_over: Fraction | int = 0) -> None:
        """Counts the rest of a pass as unread, except the fraction that another sequence length takes over."""
        left = self.left_of_pass(source)
        if part := (Fraction(left, int(self._num_windows[source])) if left else 0) - taken_over:
            self.unread[source] = self.unread.get(source, Fraction(0)) + part

    def enter(self, segment: LockedSegment, *, checks_sizes: bool = True) -> Entered:
        """Returns the windows that sources give from the start of a segment; the segment's end need not be known."""
        sources = np.array([source for source, _ in segment.weights], dtype=np.int64)
        if segment.sequence_length != self._sequence_length:
            self._sequence_length = segment.sequence_length
            self._phase += 1
        num_pairs = self.sizes.num_pairs(sources, segment.start)
        new = self._phases[sources] != self._phase
        taken_over = {}
        for leaf in np.flatnonzero(new).tolist() if self._rests else ():
            if (num_windows := self._take_over(int(sources[leaf]))) is not None:
                taken_over[leaf], new[leaf] = num_windows, False
        grown = ~new & (num_pairs != self._num_pairs[sources])
        self._begin_phase(sources[new], num_pairs[new])
        if segment.stretch_length is not None:
            for source in sources[self._offsets[sources] > 0].tolist():
                self._set_aside(source)
        for source, last_pair in zip(sources[grown].tolist(), num_pairs[grown].tolist(), strict=True):
            self._grow(source, last_pair)
        if checks_sizes:
            self._check_sizes(segment, sources)
        early = {leaf: self._early[source] for leaf, source in enumerate(sources.tolist()) if source in self._early}
        for leaf, source in enumerate(sources.tolist()) if self._rests else ():
            if (rest := self._rests.get(source)) is not None:
                early[leaf] = early.get(leaf, _NOTHING) + TakeMap.of((rest.number, 0, rest.num_windows))
                self.special[source, rest.number] = rest
                if segment.stretch_length is None:  # no later sequence length continues the pass
                    self._early[source] = early[leaf]
                    del self._rests[source]
        early_counts = np.zeros(len(sources), dtype=np.int64)
        early_counts[list(early)] = list(map(len, early.values()))
        return Entered(
            segment=segment,
            phase=self._phase,
            sources=sources,
            walks=self._walks[sources],
            offsets=self._offsets[sources],
            num_windows=self._num_windows[sources],
            num_pairs=self._num_pairs[sources],
            passes=self._passes[sources],
            early=early,
            early_counts=early_counts,
            unread={leaf: self.unread[each] for leaf, each in enumerate(sources.tolist()) if each in self.unread},
            taken_over=taken_over,
            num_tokens=self._covered(sources) if segment.stretch_length else sources[:0],
        )

    def plan(self, entered: Entered, segment: LockedSegment) -> None:
        """If the planned end of a segment interrupts a walk, limits the walk to the windows read before that end."""
        if segment.stretch_length is None or (size := planned_size(segment)) >= MOST_SAMPLES:
            return
        planned = Mixture([weight for _, weight in segment.weights]).counts(size)
        for leaf, source in enumerate(entered.sources.tolist()):
            count = int(planned[leaf]) - int(entered.early_counts[leaf])
            if (rest := self._rests.get(source)) is not None:  # `rest` has the last early takes
                self._plan_walk(source, rest, min(max(0, count + rest.num_windows), rest.num_windows))
            walks, read = divmod(max(0, count), int(entered.num_windows[leaf]))
            if read:
                self._planned[source] = int(entered.walks[leaf]) + walks
                self._plan_walk(source, entered.regular_walk(leaf, self._planned[source]), read)

    def _plan_walk(self, source: int, walk: Walk, num_first: int) -> None:
        num_first = num_first if num_first < walk.num_windows else 0
        self.special[source, walk.number] = replace(walk, part=walk.part._replace(num_first=num_first))

    def leave(self, entered: Entered, segment: LockedSegment, mixed: MixedStage) -> None:
        assert segment.num_samples is not None
        first, stop = segment.num_samples, given_out(segment, self._block)
        counts = mixed.counts(stop)
        left: dict[int, Int64s] = {}
        if stop > first:
            leaves, takes = mixed.locate(np.arange(first, stop, dtype=np.int64))
            for leaf in np.unique(leaves).tolist():
                left[leaf], counts[leaf] = _unread(np.sort(takes[leaves == leaf]), int(counts[leaf]))
        sources, taken = entered.sources, counts - entered.early_counts
        for leaf in {*left, *entered.early}:
            early = self._early.pop(int(sources[leaf]), _NOTHING).rest(int(counts[leaf]))
            if len(again := left.get(leaf, ())):
                walks, windows = entered.locate(np.full(len(again), leaf, dtype=np.int32), np.asarray(again))
                early = TakeMap(np.stack([walks, windows, windows + 1], axis=1)) + early
            if len(early):
                self._early[int(sources[leaf])] = early
        walks, self._offsets[sources] = np.divmod(entered.offsets + np.maximum(taken, 0), entered.num_windows)
        self._walks[sources] = entered.walks + walks
        self._passes[sources] = entered.passes + walks
        if segment.stretch_length is not None:
            for leaf in range(len(sources)):
                self._leave_pass(entered, leaf, int(taken[leaf]))
        for source in sources[self._walks[sources] >= MOST_WALKS].tolist():
            raise too_many_walks(self._sources[source].name, f"stage {segment.stage!r}", int(self._walks[source]))

    def _leave_pass(self, entered: Entered, leaf: int, taken: int) -> None:
        """Makes a walk over the rest of a pass: all that follows the windows planned in this segment."""
        source = int(entered.sources[leaf])
        rest, offset, number = self._rests.pop(source, None), int(self._offsets[source]), int(self._walks[source])
        planned = self._planned.pop(source, -1)
        if planned >= number + (offset > 0):  # a cut came before the planned walk
            del self.special[source, planned]
        if offset:
            walk = self.special.get((source, number)) or entered.regular_walk(leaf, number)
            self._walks[source], self._offsets[source] = number + 1, 0
            self._passes[source] += 1
        elif rest is not None:
            walk, offset = self.special.get((source, rest.number), rest), taken + rest.num_windows
            if offset <= 0:
                self._rests[source] = rest
                return
        else:
            return
        read = walk.part.num_first or walk.num_windows
        if offset < read:  # a cut
            self._early[source] = self._early.get(source, _NOTHING) + TakeMap.of((walk.number, offset, read))
        pass_walk = walk.number if walk.part.pass_walk < 0 else walk.part.pass_walk
        first_token = walk.part.first_token + read * walk.sequence_length
        part = walk.part._replace(pass_walk=pass_walk, first_token=first_token, num_first=0)
        new = replace(walk, number=int(self._walks[source]), part=part)
        if (left := _in_windows(new, walk.sequence_length)) is not None:
            self._rests[source] = left
            self._walks[source] += 1

    def _take_over(self, source: int) -> int | None:
        """Cuts the rest of a pass into windows of the current length; returns the number of windows, None if 0."""
        rest = self._rests.get(source)
        if rest is None or (rest := _in_windows(rest, self._sequence_length)) is None:
            return None
        size = self.sizes.windows(source, 0, int(self._num_pairs[source]), self._sequence_length)
        self._give_up(source, Fraction(rest.num_windows, size))
        self._early.pop(source, None)
        self._rests[source] = rest
        self._phases[source] = self._phase
        self._num_windows[source] = size
        return rest.num_windows

    def _covered(self, sources: Int64s) -> Int64s:
        tokens = [self.sizes.tokens(source, 0, int(self._num_pairs[source])) for source in sources.tolist()]
        return np.array(tokens, dtype=np.int64) - self.sizes.extra

    def _set_aside(self, source: int) -> TakeMap:
        """Turns the rest of a source's pass into early takes; returns them. The next regular walk begins a new pass."""
        left = self._early.pop(source, _NOTHING)
        if (rest := self._rests.pop(source, None)) is not None:
            left += TakeMap.of((rest.number, 0, rest.num_windows))
            self.special[source, rest.number] = rest
        if offset := int(self._offsets[source]):
            left += TakeMap.of((int(self._walks[source]), offset, int(self._num_windows[source])))
            self._offsets[source] = 0
            self._walks[source] += 1
            self._passes[source] += 1
        if len(left):
            self._early[source] = left
        return left

    def _begin_phase(self, sources: Int64s, num_pairs: Int64s) -> None:
        for source in sources.tolist():
            self._give_up(source)
            self._early.pop(source, None)
            self._rests.pop(source, None)
        begun = self._offsets[sources] > 0
        self._walks[sources] += begun
        self._passes[sources] += begun
        self._offsets[sources] = 0
        self._num_pairs[sources] = num_pairs
        self._num_windows[sources] = self.sizes.of_sources(sources, num_pairs, self._sequence_length)
        self._phases[sources] = self._phase

    def _grow(self, source: int, last_pair: int) -> None:
        left = self._set_aside(source)
        first_pair = int(self._num_pairs[source])
        num_new = self.sizes.windows(source, first_pair, last_pair, self._sequence_length)
        if len(left) and num_new:
            number = int(self._walks[source])
            self.special[source, number] = Walk(
                number=number,
                first_pair=first_pair,
                last_pair=last_pair,
                num_windows=num_new,
                pass_number=int(self._passes[source]) - 1,
                sequence_length=self._sequence_length,
            )
            self._early[source] = TakeMap.merged([left, TakeMap.of((number, 0, num_new))])
            self._walks[source] += 1
        self._num_pairs[source] = last_pair
        self._num_windows[source] = self.sizes.windows(source, 0, last_pair, self._sequence_length)

    def _check_sizes(self, segment: LockedSegment, sources: Int64s) -> None:
        sizes = self._num_windows[sources]
        for number in sources[(sizes <= 0) | (sizes >= MOST_WINDOWS)].tolist():
            size, num_pairs = int(self._num_windows[number]), int(self._num_pairs[number])
            tokens = f"{self.sizes.tokens(number, 0, num_pairs)} tokens in {num_pairs} pairs"
            source = f"source {self._sources[number].name!r} at position {segment.start} (stage {segment.stage!r})"
            samples = f"{size} samples of {self._sequence_length} tokens, expected 1 to 2**40"
            message = f"{source} has {samples}: it has {tokens}"
            hint = None if size else "add data, shorten `sequence_length`, or remove the source from the stage"
            raise ConfigError(message, hint=hint)


def too_many_walks(source: str, where: str, walk: int) -> ConfigError:
    message = f"source {source!r} would be read {walk} times up to {where}; the maximum is 2**22"
    return ConfigError(message, hint="lower the weight of the source, or add data to it")


def mixed_size(segment: LockedSegment) -> int:
    """Returns the number of positions that a segment's mixture was made for; a cut segment has fewer positions."""
    size = segment.num_samples if segment.mixed_as is None else segment.mixed_as
    return MOST_SAMPLES if size is None else size


def planned_size(segment: LockedSegment) -> int:
    """Returns the number of positions that a segment was planned to have when it began."""
    size = segment.num_samples if segment.planned is None else segment.planned
    return MOST_SAMPLES if size is None else size


def given_out(segment: LockedSegment, block: int) -> int:
    """Returns the number of positions of a segment's mixture up to the end of the segment's last mixing block."""
    size = mixed_size(segment)
    if segment.num_samples is None:
        return size
    return min(-(-segment.num_samples // block) * block, size)


def num_taken(mixed: MixedStage, block: int, offset: int) -> Int64s:
    """Returns how many windows each source gives in the first `offset` positions of a segment, int64[num_leaves]."""
    first = offset if offset == len(mixed) else offset - offset % block
    leaves, _ = mixed.locate(np.arange(first, offset, dtype=np.int64))
    counts = mixed.counts(first)
    return counts + np.bincount(leaves, minlength=len(counts))


def _unread(takes: Int64s, count: int) -> tuple[Int64s, int]:
    """Returns the unread `takes` before the last read take, and the number of takes up to and including that one."""
    behind = np.arange(count - len(takes), count, dtype=np.int64) == takes
    unread = int(np.flatnonzero(~behind)[-1]) + 1 if not behind.all() else 0
    return takes[:unread], count - (len(takes) - unread)


def extra_tokens(settings: RunSettings | RunLock) -> int:
    return 0 if settings.samples.get("add_extra_token_to_sequence", True) is False else 1


def are_packs(settings: RunSettings | RunLock) -> bool:
    """Returns whether samples are packs of whole documents or conversations, not windows of a stream."""
    return settings.windows == "best_fit" or settings.dataset in CONVERSATIONS


class WalkSizes:
    """Computes the number of windows in a walk over pairs of a source."""

    def __init__(self, sources: Sequence[LockedSource], settings: RunSettings | RunLock) -> None:
        self._sources = sources
        self.extra: int = extra_tokens(settings)
        self._packs = are_packs(settings)
        self._sinces = [tuple(pair.since for pair in source.pairs) for source in sources]
        self._totals = np.array([sum(map(tokens_of, source.pairs)) for source in sources], dtype=np.int64)
        self._num_pairs = np.array([len(sinces) for sinces in self._sinces], dtype=np.int64)
        self._latest = np.array([sinces[-1] if sinces else 0 for sinces in self._sinces], dtype=np.int64)

    def num_pairs(self, sources: Int64s, position: int) -> Int64s:
        """Returns the number of pairs that each source has at a position."""
        found = self._num_pairs[sources]
        for place in np.flatnonzero(self._latest[sources] > position).tolist():
            found[place] = bisect_right(self._sinces[sources[place]], position)
        return found

    def next_growth(self, sources: Int64s, position: int) -> int | None:
        """Returns the first position from `position` on where one of `sources` gains pairs; None if no source does."""
        later = sources[self._latest[sources] >= position].tolist()
        return min((since for source in later for since in self._sinces[source] if since >= position), default=None)

    def of_sources(self, sources: Int64s, num_pairs: Int64s, sequence_length: int) -> Int64s:
        """Returns the number of windows of a walk over the first `num_pairs` pairs of each source."""
        if self._packs:
            both = zip(sources.tolist(), num_pairs.tolist(), strict=True)
            return np.array([self.windows(source, 0, last, sequence_length) for source, last in both], dtype=np.int64)
        found: Int64s = np.maximum(self._totals[sources] - self.extra, 0) // sequence_length
        for place in np.flatnonzero(self._num_pairs[sources] != num_pairs).tolist():
            found[place] = self.windows(int(sources[place]), 0, int(num_pairs[place]), sequence_length)
        return found

    def windows(self, source: int, first_pair: int, last_pair: int, sequence_length: int) -> int:
        """Returns the number of windows of a walk over pairs [first_pair, last_pair) of a source."""
        pairs = self._sources[source].pairs[first_pair:last_pair]
        if self._packs:
            return sum(dict(pair.packs)[sequence_length] for pair in pairs)
        return max(0, sum(map(tokens_of, pairs)) - self.extra) // sequence_length

    def tokens(self, source: int, first_pair: int, last_pair: int) -> int:
        return sum(map(tokens_of, self._sources[source].pairs[first_pair:last_pair]))


def tokens_of(pair: LockedPair) -> int:
    return pair.num_tokens - pair.held_tokens
