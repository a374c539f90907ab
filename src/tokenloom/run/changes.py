"""How two locks of a run differ: what a new one has, and the first position that would hold something else."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.run.digest import check_position, content_of, order_digest, ratio_of
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.sample_settings import WITHOUT_EFFECT
from tokenloom.run.timeline import Located, Timeline

MAKE_SAMPLES = ("order", "seed", "documents", "windows", "dataset", "samples")
"""Settings that change every sample: runs that differ in one have none in common; mixing blocks only move them."""

_LARGEST_CHUNK = 1 << 18
"""Positions that are compared at a time."""

_MOST_COMPARED = 1 << 22
"""Positions that are compared at most: what is decided otherwise may never show, such as a document denied twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The first position at which two locks differ.

    Attributes:
        position: the position.
        before, after: what stands there, in words.
    """

    position: int
    before: str
    after: str


WHOLE = "the reference's order is reshuffled as a whole by any change"


def check_past(old: RunLock, new: RunLock, consumed: int) -> None:
    """Checks that a lock leaves the positions that were read as they are."""
    moved = first_moved(old, new, consumed)
    if moved is None:
        return
    message = (
        f"expected the {consumed} positions that were read to stay as they are, found position {moved.position} "
        f"moved: {moved.before} would become {moved.after}"
    )
    hint = "undo that change; `tokenloom run amend` changes a run with `order = 1` from a later position on"
    raise ConfigError(message, hint=hint)


def first_moved(old: RunLock, new: RunLock, stop: int) -> Moved | None:
    """Returns the first position before `stop` at which two locks differ; None if there is none.

    If one of them is in the reference's order, that is the very first for any difference.

    Where they agree on every window, but not on what decides them, that is the first position that is decided
    otherwise: a digest of the order up to there is another one.
    """
    if not stop:
        return None
    if old.is_megatron or new.is_megatron:
        return _moved_as_a_whole(old, new)
    check_position(old, stop)
    before, after = Timeline(old), Timeline(new)
    common = stop if after.num_samples is None else min(stop, after.num_samples)
    if order_digest(old, common) != order_digest(new, common):
        first = _last_true(lambda position: order_digest(old, position) == order_digest(new, position), common)
        if (moved := _first_difference(before, after, max(0, first), common)) is not None:
            return moved
        if common == stop:
            return _decided_otherwise(old, new, max(0, first))
    if common < stop:
        return Moved(position=common, before=_place(before, common), after="the end of the run")
    return None


def _moved_as_a_whole(old: RunLock, new: RunLock) -> Moved | None:
    before, after = stored_order_facts(old), stored_order_facts(new)
    for name, value in before.items():
        if value != after[name]:
            was, now = (f"a sample of {name} {each!s:.80}" for each in (value, after[name]))
            return Moved(position=0, before=was, after=f"{now}: {WHOLE}")
    return None


def stored_order_facts(lock: RunLock) -> dict[str, Any]:
    """Returns all that decides the reference's order of a run, as far as the lock says it, by name."""
    segment = lock.segments[0]
    read = [lock.sources[number] for number, _ in segment.weights]
    weights = dict(zip([source.name for source in read], ratio_of(segment), strict=True))
    return {
        "`order`": lock.order_name,
        "`seed`": lock.seed,
        "`dataset`": lock.dataset,
        "[samples]": {name: value for name, value in lock.samples.items() if name not in WITHOUT_EFFECT},
        "`sequence_length`": segment.sequence_length,
        "a stage of samples": segment.num_samples,
        "`weights`": list(weights.items()),
        "data": [[source.name, [content_of(pair) for pair in source.pairs]] for source in read],
    }


def _last_true(holds: Callable[[int], bool], stop: int) -> int:
    """Returns the last number below `stop` up to which something holds; -1 if it does not at 0."""
    first, last = -1, stop
    while last - first > 1:
        middle = (first + last) // 2
        if holds(middle):
            first = middle
        else:
            last = middle
    return first


def _first_difference(before: Timeline, after: Timeline, start: int, stop: int) -> Moved | None:
    locks = before.lock, after.lock
    names = [name for name in MAKE_SAMPLES if getattr(before.lock, name) != getattr(after.lock, name)]
    if names and start < stop:
        old, new = (", ".join(f"{name} {getattr(lock, name)!r}" for name in names) for lock in locks)
        return Moved(position=start, before=f"a sample of {old}", after=f"one of {new}")
    compared = _Compared(before, after)
    for positions in _chunks(start, min(stop, start + _MOST_COMPARED)):
        differs = compared.differ(positions, before.locate(positions), after.locate(positions))
        if differs.any():
            position = int(positions[differs.argmax()])
            old, new = _place(before, position), _place(after, position)
            new = new if old != new else f"{new} in changed data, or cut otherwise"
            return Moved(position=position, before=old, after=new)
    return None


def _decided_otherwise(old: RunLock, new: RunLock, position: int) -> Moved:
    def mixture(lock: RunLock) -> str:
        segment = next(each for each in reversed(lock.segments) if each.start <= position)
        weights = ", ".join(f"{lock.sources[source].name}: {weight}" for source, weight in segment.weights[:10])
        return f"a sample of mixture {{{weights}}} from position {segment.start} on, in blocks of {lock.mixing_block},"

    before, after = mixture(old), mixture(new).removesuffix(",")
    if before == f"{after},":
        after += " with other documents denied or other data"
    return Moved(position=position, before=before, after=after)


def _chunks(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    size = 1 << 10
    while start < stop:
        yield np.arange(start, min(start + size, stop), dtype=np.int64)
        start += size
        size = min(2 * size, _LARGEST_CHUNK)


def _place(timeline: Timeline, position: int) -> str:
    found = timeline.locate(np.array([position]))
    source = int(found.sources[0])
    walk = timeline.walk_of(source, int(found.walks[0]))
    return (
        f"sample {found.windows[0]} of {walk.sequence_length} tokens in walk {walk.number} "
        f"(pass {walk.pass_number}) through source {timeline.lock.sources[source].name!r}"
    )


class _Compared:
    """Compares what stands at positions of two runs."""

    def __init__(self, before: Timeline, after: Timeline) -> None:
        self._timelines = (before, after)
        numbers: dict[str, int] = {}
        locks = (before.lock, after.lock)
        self._names = tuple(
            np.array([numbers.setdefault(source.name, len(numbers)) for source in lock.sources]) for lock in locks
        )
        self._lengths = tuple(np.array([segment.sequence_length for segment in lock.segments]) for lock in locks)
        self._numbers_after = {source.name: number for number, source in enumerate(after.lock.sources)}
        others = [self._numbers_after.get(source.name) for source in before.lock.sources]
        self._changed = [  # or cut otherwise
            number
            for number, other in enumerate(others)
            if other is not None
            and (
                any(segment.stretch_length for lock in locks for segment in lock.segments)
                or _contents(before.lock.sources[number]) != _contents(after.lock.sources[other])
            )
        ]

    def differ(self, positions: NDArray[np.int64], before: Located, after: Located) -> NDArray[np.bool_]:
        """Returns which positions hold something else: bool[num_positions]."""
        (old_names, new_names), (old_lengths, new_lengths) = self._names, self._lengths
        differs: NDArray[np.bool_] = (
            (old_names[before.sources] != new_names[after.sources])
            | (old_lengths[before.segments] != new_lengths[after.segments])
            | (before.walks != after.walks)
            | (before.windows != after.windows)
        )
        for source in self._changed:
            here = np.flatnonzero((before.sources == source) & ~differs)
            walks = before.walks[here]
            for walk in np.unique(walks).tolist():
                differs[here[walks == walk]] = self._walk_differs(source, walk)
        differs |= self._denied_otherwise(positions, before)
        return differs

    def _walk_differs(self, source: int, walk: int) -> bool:
        before, after = self._timelines
        other = self._numbers_after[before.lock.sources[source].name]
        old, new = before.walk_of(source, walk), after.walk_of(other, walk)
        data = (
            [content_of(pair) for pair in timeline.lock.sources[number].pairs[each.first_pair : each.last_pair]]
            for timeline, number, each in ((before, source, old), (after, other, new))
        )
        return old != new or next(data) != next(data)

    def _denied_otherwise(self, positions: NDArray[np.int64], before: Located) -> NDArray[np.bool_]:
        differs = np.zeros(len(positions), dtype=np.bool_)
        old, new = (timeline.lock for timeline in self._timelines)
        starts = sorted({denial.start for lock in (old, new) for denial in lock.denials} | {0})
        places = np.searchsorted(starts, positions, side="right") - 1
        for place in np.unique(places).tolist():
            one, other = _denied_at(old, starts[place]), _denied_at(new, starts[place])
            names = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
            numbers = [number for number, source in enumerate(old.sources) if source.name in names]
            differs |= (places == place) & np.isin(before.sources, numbers)
        return differs


def _contents(source: LockedSource) -> list[object]:
    return [[pair.since, content_of(pair), list(pair.packs)] for pair in source.pairs]


def _denied_at(lock: RunLock, position: int) -> dict[str, set[int]]:
    denied: dict[str, set[int]] = {}
    for denial in lock.denials:
        if denial.start <= position:
            for source, documents in denial.documents:
                denied.setdefault(lock.sources[source].name, set()).update(documents)
    return denied


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChanges:
    """How a lock differs from an older one.

    Attributes:
        new_data: sources with the pairs that were not there.
        new_sources: names of those of them that are new.
        gone: names of sources that are not there any more.
        new_segments: segments that were not there, or were otherwise.
        num_denied: documents that are denied now and were not.
        others: settings that differ.
    """

    new_data: tuple[LockedSource, ...]
    new_sources: tuple[str, ...]
    gone: tuple[str, ...]
    new_segments: tuple[LockedSegment, ...]
    num_denied: int
    others: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.new_data or self.gone or self.new_segments or self.num_denied or self.others)


_OTHERS = (*MAKE_SAMPLES, "mixing_block", "tokenizer")


def lock_changes(old: RunLock, new: RunLock) -> LockChanges:
    """Returns how a lock differs from an older one."""
    before = {source.name: source for source in old.sources}
    names = {source.name for source in new.sources}
    known = {_facts(old, segment) for segment in old.segments}
    data = [_new_data(source, before.get(source.name)) for source in new.sources]
    return LockChanges(
        new_data=tuple(found for found in data if found.pairs),
        new_sources=tuple(found.name for found in data if found.pairs and found.name not in before),
        gone=tuple(name for name in before if name not in names),
        new_segments=tuple(segment for segment in new.segments if _facts(new, segment) not in known),
        num_denied=len(_denied(new) - _denied(old)),
        others=tuple(name for name in _OTHERS if getattr(old, name) != getattr(new, name)),
    )


def _new_data(source: LockedSource, old: LockedSource | None) -> LockedSource:
    """Returns a source with its new pairs alone."""
    left = Counter(map(_named_content, () if old is None else old.pairs))
    left.subtract(map(_named_content, source.pairs))
    pairs = []
    for pair in reversed(source.pairs):  # of equal ones the last is new
        if left[_named_content(pair)] < 0:
            left[_named_content(pair)] += 1
            pairs.append(pair)
    return replace(source, pairs=tuple(reversed(pairs)))


def _facts(lock: RunLock, segment: LockedSegment) -> tuple[object, ...]:
    weights = frozenset((lock.sources[source].name, weight) for source, weight in segment.weights)
    size = segment.num_samples, segment.mixed_as, segment.stretch_length
    return segment.stage, segment.start, *size, segment.sequence_length, weights


def _denied(lock: RunLock) -> set[tuple[int, str, int]]:
    return {
        (denial.start, lock.sources[source].name, document)
        for denial in lock.denials
        for source, documents in denial.documents
        for document in documents
    }


def dropped_denials(old: RunLock, new: RunLock) -> Iterator[str]:
    """Yields the names of documents that a lock denied, and that the new one denies later or not at all.

    A document is known by what its pair holds and its number there, so that a pair may move; where the new lock has no
    such pair, by the name and number that it had. What no source of its name holds any more cannot be read.
    """
    by_content = {(key, number): start for _, _, key, number, start in _first_denied(new)}
    by_name = {(name, document): start for name, document, _, _, start in _first_denied(new)}
    contents = {_content(pair) for source in new.sources for pair in source.pairs}
    names = {source.name for source in new.sources}
    for name, document, key, number, start in _first_denied(old):
        if key in contents:
            now = by_content.get((key, number))
        elif name in names:
            now = by_name.get((name, document))
        else:
            continue
        if now is None or now > start:
            yield f"{name}:{document} from position {start} on"


def _first_denied(lock: RunLock) -> Iterator[tuple[str, int, Hashable, int, int]]:
    """Yields each denied document: name of its source, number, its pair, number there, and from which position on."""
    seen: set[tuple[int, int]] = set()
    for denial in lock.denials:
        for source, documents in denial.documents:
            pairs = lock.sources[source].pairs
            firsts = list(accumulate((pair.num_documents for pair in pairs), initial=0))
            for document in documents:
                if (source, document) not in seen:
                    seen.add((source, document))
                    place = bisect_right(firsts, document) - 1
                    key = _content(pairs[place])
                    yield lock.sources[source].name, document, key, document - firsts[place], denial.start


def _named_content(pair: LockedPair) -> Hashable:
    """Returns what a pair is known by where it lies elsewhere now."""
    return os.path.basename(pair.prefix), _content(pair)


def _content(pair: LockedPair) -> Hashable:
    return pair.num_documents, pair.num_tokens, pair.dtype, pair.idx_bytes, pair.index_start_crc32
