"""How two locks differ: the first position that holds something else, what a new one has, what two runs have in common.

Nothing but the locks is read. What two runs have in common are samples (one window of one walk, cut alike out of data
of the same content, wherever in the run), and data: pairs of the same content under any name.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.rendering.words import counted
from tokenloom.run.audit.trace import num_tokens_of, overlaps, windows_read
from tokenloom.run.dataset import Place, place_at
from tokenloom.run.digest import check_position, content_of, order_digest, run_identity
from tokenloom.run.held_out import DeniedDocuments
from tokenloom.run.lock import MOST_SAMPLES, LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.progress import MOST_WALKS, Int64s, mixed_size
from tokenloom.run.settings import WITHOUT_EFFECT
from tokenloom.run.timeline import Timeline

MAKE_SAMPLES = ("order", "seed", "documents", "windows", "dataset", "samples")
"""Settings that change every sample: runs that differ in one have none in common; mixing blocks only move them."""

_SETTINGS = (*MAKE_SAMPLES, "mixing_block", "tokenizer")

_LARGEST_CHUNK = 1 << 18
"""Positions that are compared at a time."""

_MOST_COMPARED = 1 << 22
"""Positions that are compared at most: what is decided otherwise may never show, such as a document denied twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The first position at which two locks differ, and what stands there, in words."""

    position: int
    before: str
    after: str


WHOLE = "the reference's order is reshuffled as a whole by any change"


def check_past(old: RunLock, new: RunLock, consumed: int) -> None:
    """Checks that a lock leaves the positions that were read as they are."""
    if (moved := first_moved(old, new, consumed)) is not None:
        message = f"expected the {consumed} positions that were read to stay as they are, found position "
        message += f"{moved.position} moved: {moved.before} would become {moved.after}"
        hint = "undo that change; `tokenloom run amend` changes a run with `order = 1` from a later position on"
        raise ConfigError(message, hint=hint)


def first_moved(old: RunLock, new: RunLock, stop: int) -> Moved | None:
    """Returns the first position before `stop` at which two locks differ; None if there is none.

    Of the reference's order that is the very first for any difference. Where all windows agree, but not what decides
    them, it is the first position that is decided otherwise: a digest of the order up to there is another one.
    """
    if not stop:
        return None
    if old.is_megatron or new.is_megatron:
        return _moved_as_a_whole(old, new)
    check_position(old, stop)
    before, after = Timeline(old), Timeline(new)
    common = min(stop, new.end)
    if order_digest(old, common) != order_digest(new, common):
        differs = bisect_left(range(common), 1, key=lambda at: int(order_digest(old, at) != order_digest(new, at)))
        first = max(0, differs - 1)
        if (moved := _first_difference(before, after, first, common)) is not None:
            return moved
        if common == stop:
            return _decided_otherwise(old, new, first)
    if common < stop:
        return Moved(position=common, before=_place(before, common), after="the end of the run")
    return None


def _moved_as_a_whole(old: RunLock, new: RunLock) -> Moved | None:
    before, after = stored_order_facts(old), stored_order_facts(new)
    if (name := next((name for name in before if before[name] != after[name]), None)) is None:
        return None
    was, now = (f"a sample of {name} {facts[name]!s:.80}" for facts in (before, after))
    return Moved(position=0, before=was, after=f"{now}: {WHOLE}")


def stored_order_facts(lock: RunLock) -> dict[str, Any]:
    """Returns all that decides the reference's order of a run, as far as the lock says it, by name."""
    segment = lock.segments[0]
    read = [lock.sources[number] for number, _ in segment.weights]
    return {
        "`order`": lock.order_name,
        "`seed`": lock.seed,
        "`dataset`": lock.dataset,
        "[samples]": {name: value for name, value in lock.samples.items() if name not in WITHOUT_EFFECT},
        "`sequence_length`": segment.sequence_length,
        "a stage of samples": segment.num_samples,
        "`weights`": lock.ratio_of(segment),
        "data": [[source.name, [content_of(pair) for pair in source.pairs]] for source in read],
    }


def _first_difference(before: Timeline, after: Timeline, start: int, stop: int) -> Moved | None:
    names = [name for name in MAKE_SAMPLES if getattr(before.lock, name) != getattr(after.lock, name)]
    if names and start < stop:
        old, new = (", ".join(f"{name} {getattr(of.lock, name)!r}" for name in names) for of in (before, after))
        return Moved(position=start, before=f"a sample of {old}", after=f"one of {new}")
    stop = min(stop, start + _MOST_COMPARED)
    numbers: dict[Hashable, int] = {}
    one, other = _samples_of(before, numbers), _samples_of(after, numbers)
    size = 1 << 10
    while start < stop:
        positions = np.arange(start, min(start + size, stop), dtype=np.int64)
        differs = (one(positions) != other(positions)).any(axis=0)
        if differs.any():
            position = int(positions[differs.argmax()])
            old, new = _place(before, position), _place(after, position)
            new = new if old != new else f"{new} in changed data, or cut otherwise"
            return Moved(position=position, before=old, after=new)
        start, size = start + size, min(2 * size, _LARGEST_CHUNK)
    return None


def _samples_of(timeline: Timeline, numbers: dict[Hashable, int]) -> Callable[[Int64s], Int64s]:
    """Returns what tells the samples at positions of a run as numbers, which are equal for one sample of two runs.

    These are the number of the walk with its data and denials, and windows in it: int64[2, num_positions].
    """
    lock, denied = timeline.lock, DeniedDocuments(timeline.lock)
    starts = sorted({0, *(denial.start for denial in lock.denials)})

    @cache
    def number_of(walk: int, level: int) -> int:
        source, number = divmod(walk, MOST_WALKS)
        locked, walked = lock.sources[source], timeline.walk_of(source, number)
        data = tuple(tuple(content_of(pair)) for pair in locked.pairs[walked.first_pair : walked.last_pair])
        without = denied.of(source, denied.level(source, starts[level]))
        return numbers.setdefault((locked.name, walked, data, without), len(numbers))

    def at(positions: Int64s) -> Int64s:
        found = timeline.locate(positions)
        levels = np.searchsorted(starts, positions, side="right") - 1
        walks = (found.sources * np.int64(MOST_WALKS) + found.walks) * len(starts) + levels
        groups, which = np.unique(walks, return_inverse=True)
        known = [number_of(*divmod(group, len(starts))) for group in groups.tolist()]
        return np.stack([np.array(known, dtype=np.int64)[which], found.windows])

    return at


def _decided_otherwise(old: RunLock, new: RunLock, position: int) -> Moved:
    before, after = (
        f"a sample of {_stages(lock)[sum(segment.start <= position for segment in lock.segments) - 1]}, "
        f"in blocks of {lock.mixing_block}"
        for lock in (old, new)
    )
    after += " with other documents denied or other data" if before == after else ""
    return Moved(position=position, before=before, after=after)


def _place(timeline: Timeline, position: int) -> str:
    place = place_at(timeline, position)
    walk = f"walk {place.walk} (pass {place.pass_number}) through source {place.source!r}"
    return f"sample {place.window} of {place.sequence_length} tokens in {walk}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChanges:
    """How a lock differs from an older one.

    Sources with pairs that were not there (of `new_sources` none was), names of sources that are gone, segments that
    were not there or were otherwise, documents that are denied now and were not, or later, and names of other settings.
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


def lock_changes(old: RunLock, new: RunLock) -> LockChanges:
    """Returns how a lock differs from an older one."""
    was, denied = _first_denied(old), _first_denied(new)
    before = {source.name: Counter(map(_named_content, source.pairs)) for source in old.sources}
    names, known = {source.name for source in new.sources}, {_facts(old, segment) for segment in old.segments}
    data = []
    for source in new.sources:
        left, added = Counter(before.get(source.name)), []
        for pair in source.pairs:
            left[_named_content(pair)] -= 1
            added += [pair] if left[_named_content(pair)] < 0 else []
        data += [replace(source, pairs=tuple(added))] if added else []
    return LockChanges(
        new_data=tuple(data),
        new_sources=tuple(found.name for found in data if found.name not in before),
        gone=tuple(name for name in before if name not in names),
        new_segments=tuple(segment for segment in new.segments if _facts(new, segment) not in known),
        num_denied=sum(each not in was or start < was[each][0] for each, (start, *_) in denied.items()),
        others=tuple(name for name in _SETTINGS if _setting(old, name) != _setting(new, name)),
    )


def _facts(lock: RunLock, segment: LockedSegment) -> tuple[object, ...]:
    weights = frozenset((lock.sources[source].name, weight) for source, weight in segment.weights)
    size = segment.num_samples, segment.mixed_as, segment.stretch_length
    return segment.stage, segment.start, *size, segment.sequence_length, weights


def dropped_denials(old: RunLock, new: RunLock) -> Iterator[str]:
    """Yields the names of documents that a lock denied, and that the new one denies later or not at all.

    A document is known by what its pair holds and its number there, so that a pair may move; where the new lock has no
    such pair, by the name and number that it had. What no source of its name holds any more cannot be read.
    """
    by_name = _first_denied(new)
    by_content = {(pair, row): start for start, pair, row in by_name.values()}
    contents = {_content(pair) for source in new.sources for pair in source.pairs}
    names = {source.name for source in new.sources}
    for (name, document), (start, pair, row) in _first_denied(old).items():
        if pair not in contents and name not in names:
            continue
        now = by_content.get((pair, row)) if pair in contents else by_name.get((name, document), (None,))[0]
        if now is None or now > start:
            yield f"{name}:{document} from position {start} on"


def _first_denied(lock: RunLock) -> dict[tuple[str, int], tuple[int, Hashable, int]]:
    """Returns, by source and number, from where on documents are denied, what their pairs are known by, and rows."""
    found: dict[tuple[str, int], tuple[int, Hashable, int]] = {}
    for denial in lock.denials:
        for number, documents in denial.documents:
            source = lock.sources[number]
            pairs, rows = (each.tolist() for each in source.locate(documents))
            for document, pair, row in zip(documents, pairs, rows, strict=True):
                found.setdefault((source.name, document), (denial.start, _content(source.pairs[pair]), row))
    return found


def _content(pair: LockedPair, parts: int = 5) -> tuple[object, ...]:
    """Returns what tells the data of a pair from others, wherever they lie; 6 parts have the checksum of tokens."""
    return tuple(content_of(pair)[:parts])


def _named_content(pair: LockedPair) -> Hashable:
    return os.path.basename(pair.prefix), _content(pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting that two runs have otherwise, in words; or "sources", "data of NAME", "stages", "denied"."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """What two runs have in common of the source of one name. Tokens are of whole samples, each time they are read.

    Attributes:
        tokens_before, tokens_after, common_tokens: tokens that each reads of it, and those of samples that both read.
        data_before, data_after: tokens of its pairs in each lock.
        common_data: those of pairs of the first run that the second has, too, in its sources `names_after`.
    """

    name: str
    tokens_before: int
    tokens_after: int
    common_tokens: int
    data_before: int
    data_after: int
    common_data: int
    names_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """How a run differs from another.

    Attributes:
        runs: identities of both.
        ends: one past the last position of each; None for a run without an end.
        stop: the position before which they were compared; None if neither has an end and none was asked for.
        position: the first position that differs, or at which one of them ends; None if they are equal.
        before, after: what stands there; None behind the end of a run, and where the order is not computed.
        reason: what differs there, in words, where it is not the place.
        settings: what they have otherwise, wherever that shows.
        sources: what they have in common of each source before `stop`; None without one, or of an order that is not
            computed.
    """

    runs: tuple[str, str]
    ends: tuple[int | None, int | None]
    stop: int | None
    position: int | None
    before: Place | None
    after: Place | None
    reason: str | None
    settings: tuple[ChangedSetting, ...]
    sources: tuple[SharedSource, ...] | None

    @property
    def are_equal(self) -> bool:
        """Whether nothing differs at the positions that were compared."""
        return self.position is None

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as `json` writes it."""
        return asdict(self)


def differences(old: RunLock, new: RunLock, *, until: int | None = None) -> RunDifferences:
    """Returns how a run differs from another."""
    ends = old.num_samples, new.num_samples
    longest = max(old.end, new.end)
    if until is not None and until > longest:
        message = f"expected a position up to {longest}, where the longer run ends, found {until}"
        raise ConfigError(message)
    shorter, longer = sorted(min(lock.end, longest if until is None else until) for lock in (old, new))
    moved, is_stored = first_moved(old, new, shorter), old.is_megatron or new.is_megatron
    position = moved.position if moved is not None else shorter if shorter != longer else None
    reason = None if moved is None else f"{moved.before} → {moved.after}"
    stop = shorter if until is None or is_stored else until
    before, after, sources = None, None, None
    if is_stored and (moved is not None or ends[0] != ends[1]):
        position, reason = 0, 'with `order = "megatron"` any difference shuffles all samples anew'
    if not is_stored:
        timelines = Timeline(old), Timeline(new)
        if position is not None:
            before, after = (place_at(each, position) if position < each.lock.end else None for each in timelines)
        sources = _shared(*timelines, stop) if stop != MOST_SAMPLES else None
    return RunDifferences(
        runs=(run_identity(old), run_identity(new)),
        ends=ends,
        stop=stop if is_stored or stop != MOST_SAMPLES else None,
        position=position,
        before=before,
        after=after,
        reason=reason,
        settings=tuple(_changed(old, new)),
        sources=sources,
    )


def _shared(before: Timeline, after: Timeline, stop: int) -> tuple[SharedSource, ...]:
    """Returns what two runs have in common of each source, in the order of the first run."""
    old, new = before.lock, after.lock
    read, other = (
        {each.lock.sources[number].name: cuts for number, cuts in windows_read(each, 0, stop).items()}
        for each in (before, after)
    )
    have_samples = all(_setting(old, name) == _setting(new, name) for name in MAKE_SAMPLES)
    owners: dict[tuple[object, ...], set[str]] = {}
    for owner in new.sources:
        for pair in owner.pairs:
            owners.setdefault(_content(pair, 6), set()).add(owner.name)
    found = []
    sources, others = ({source.name: source for source in lock.sources} for lock in (old, new))
    for name in {**sources, **others}:
        mine, its = read.get(name, {}), other.get(name, {})
        pairs = sources[name].pairs if name in sources else ()
        shared = [pair for pair in pairs if _content(pair, 6) in owners]
        common = {cut: list(overlaps(ranges, its[cut])) for cut, ranges in mine.items() if cut in its}
        found.append(
            SharedSource(
                name=name,
                tokens_before=num_tokens_of(mine),
                tokens_after=num_tokens_of(its),
                common_tokens=num_tokens_of(common) if have_samples else 0,
                data_before=sum(pair.num_tokens for pair in pairs),
                data_after=others[name].num_tokens if name in others else 0,
                common_data=sum(pair.num_tokens for pair in shared),
                names_after=tuple(sorted({owner for pair in shared for owner in owners[_content(pair, 6)]})),
            )
        )
    return tuple(found)


def _changed(old: RunLock, new: RunLock) -> Iterator[ChangedSetting]:
    for name in _SETTINGS:
        if (one := _setting(old, name)) != (other := _setting(new, name)):
            words = ["none" if value is None else str(value) for value in (one, other)]
            yield ChangedSetting(name=name, before=words[0], after=words[1])
    before, after = ({source.name: source for source in lock.sources} for lock in (old, new))
    if before.keys() != after.keys():
        gone, added = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
        yield ChangedSetting(name="sources", before=_some(gone), after=_some(added))
    for name in before:
        if name in after and _contents(before[name]) != _contents(after[name]):
            one, other = _described(before[name]), _described(after[name])
            other += " of other content, order or positions" if one == other else ""
            yield ChangedSetting(name=f"data of {name}", before=one, after=other)
    for name, told in (("stages", _stages), ("denied", _denials)):
        both = zip_longest(told(old), told(new), fillvalue="none")
        if first := next(((one, other) for one, other in both if one != other), None):
            yield ChangedSetting(name=name, before=first[0], after=first[1])


def _setting(lock: RunLock, name: str) -> object:
    return lock.tokenizer and lock.tokenizer.fingerprint if name == "tokenizer" else getattr(lock, name)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _stages(lock: RunLock) -> list[str]:
    """Returns the segments in words, with all that decides their positions."""
    told = []
    for segment in lock.segments:
        shares = ", ".join(f"{name}: {share}" for name, share in lock.ratio_of(segment))
        size = "without end" if segment.num_samples is None else f"{segment.num_samples} samples"
        is_whole = mixed_size(segment) in (segment.num_samples, MOST_SAMPLES)
        mixed = "" if is_whole else f", mixed as {mixed_size(segment)}"
        told.append(f"{size} of {segment.sequence_length} tokens from {segment.start} on{mixed}: {shares}")
    return told


def _denials(lock: RunLock) -> list[str]:
    return [
        f"{len(documents)} documents of {lock.sources[source].name} from position {denial.start} on, "
        f"of checksum {zlib.crc32(repr(documents).encode()):08x}"
        for denial in lock.denials
        for source, documents in denial.documents
    ]


def _contents(source: LockedSource) -> list[tuple[object, ...]]:
    return [(*content_of(pair), pair.since) for pair in source.pairs]


def _described(source: LockedSource) -> str:
    held = sum(pair.held_tokens for pair in source.pairs)
    words = f"{counted(len(source.pairs), 'pair')}, {source.num_tokens:,} tokens"
    return f"{words}, {held:,} held out" if held else words
