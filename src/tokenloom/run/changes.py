"""Compares two locks: finds the first position that differs, the changed settings and data, and the common data.

Only the locks are read. Common data are pairs with equal counts and checksums, whatever the names of the pairs are.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.rendering.words import counted
from tokenloom.run.dataset import Place, place_at
from tokenloom.run.digest import check_position, content_of, order_digest, run_identity
from tokenloom.run.lock import MOST_SAMPLES, LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.settings import WITHOUT_EFFECT
from tokenloom.run.source_progress import mixed_size
from tokenloom.run.timeline import Timeline

MAKE_SAMPLES = ("order", "seed", "documents", "windows", "dataset", "samples")
"""Settings that decide the contents of every sample; `mixing_block` is not listed, since it only moves samples."""

_SETTINGS = (*MAKE_SAMPLES, "mixing_block", "tokenizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The first position where two locks differ; `before`, `after`: the old and the new sample there, in words."""

    position: int
    before: str
    after: str


WHOLE = "any change reshuffles all of the reference's order"


def check_past(old: RunLock, new: RunLock, consumed: int) -> None:
    """Raises an error if a new lock changes the sample at one of the first `consumed` positions."""
    if (moved := first_moved(old, new, consumed)) is not None:
        where = f"position {moved.position} is before position {consumed} and must not change"
        message = f"{where}: {moved.before} would become {moved.after}"
        raise ConfigError(message, hint="undo the change, or change later positions with `tokenloom run amend`")


def first_moved(old: RunLock, new: RunLock, stop: int) -> Moved | None:
    """Returns the first position before `stop` where two locks differ; None if no position differs.

    All earlier samples are equal. The sample at this position is determined differently, but can be equal by chance.
    """
    if not stop:
        return None
    if old.is_megatron or new.is_megatron:
        one, other = stored_order_facts(old), stored_order_facts(new)
        if (name := next((name for name in one if one[name] != other[name]), None)) is None:
            return None
        before, after = (f"a sample with {name} {facts[name]!s:.80}" for facts in (one, other))
        return Moved(position=0, before=before, after=f"{after}: {WHOLE}")
    check_position(old, stop)
    common = min(stop, new.end)

    def differs(position: int) -> int:
        return int(order_digest(old, position + 1) != order_digest(new, position + 1))

    if not common or not differs(common - 1):
        ends = Moved(position=common, before=_decided(old, common), after="the end of the run")
        return ends if common < stop else None
    position = bisect_left(range(common), 1, key=differs)
    if names := [name for name in MAKE_SAMPLES if getattr(old, name) != getattr(new, name)]:
        before, after = (", ".join(f"{name} {getattr(lock, name)!r}" for name in names) for lock in (old, new))
        return Moved(position=position, before=f"a sample with {before}", after=f"one with {after}")
    before, after = _decided(old, position), _decided(new, position)
    after += " with other data or other denied documents" if before == after else ""
    return Moved(position=position, before=before, after=after)


def _decided(lock: RunLock, position: int) -> str:
    number = sum(segment.start <= position for segment in lock.segments) - 1
    return f'a sample of the segment "{_stages(lock)[number]}", mixed in blocks of {lock.mixing_block}'


def stored_order_facts(lock: RunLock) -> dict[str, Any]:
    """Returns everything in a lock that determines the reference's order, by name of the setting."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChanges:
    """The differences between a lock and an older lock.

    `new_data`: each source that gained pairs, with only its new pairs. `gone`: names of removed sources. `others`:
    names of changed settings. `num_denied`: number of denied documents that the old lock denies later or not at all.
    """

    new_data: tuple[LockedSource, ...]
    new_sources: tuple[str, ...]
    gone: tuple[str, ...]
    new_segments: tuple[LockedSegment, ...]
    num_denied: int
    others: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.new_data or self.gone or self.new_segments or self.num_denied or self.others)


def lock_changes(old: RunLock, new: RunLock) -> LockChanges:
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
    """Yields denials of the old lock that the new lock lacks or begins later, such as `web:7 from position 9 on`.

    Since pairs may move, a document is recognized by the content of its pair and its row in the pair. If the new lock
    has no such pair, the name identifies the document, and denials of a source that the new lock lacks are skipped.
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
    """Returns {(source name, document): (first position where it is denied, content of its pair, row in the pair)}."""
    found: dict[tuple[str, int], tuple[int, Hashable, int]] = {}
    for denial in lock.denials:
        for number, documents in denial.documents:
            source = lock.sources[number]
            pairs, rows = (each.tolist() for each in source.locate(documents))
            for document, pair, row in zip(documents, pairs, rows, strict=True):
                found.setdefault((source.name, document), (denial.start, _content(source.pairs[pair]), row))
    return found


def _content(pair: LockedPair, parts: int = 5) -> tuple[object, ...]:
    """Returns the first `parts` values of `content_of`; the sixth value is the tokens' checksum, which can be None."""
    return tuple(content_of(pair)[:parts])


def _named_content(pair: LockedPair) -> Hashable:
    return os.path.basename(pair.prefix), _content(pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """One difference between locks, in words; `name`: a setting, "sources", "data of SOURCE", "stages" or "denied"."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """Tokens of a source in runs 1 and 2; `common_data` tokens of run 1 are in the sources `names_after` of run 2."""

    name: str
    data_before: int
    data_after: int
    common_data: int
    names_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """The differences between two runs.

    Attributes:
        runs: identities of both runs.
        ends: number of positions of each run; None if endless.
        stop: end of the compared positions, exclusive; None if there is no end.
        position: first position where the runs differ or that only one run has; None if the runs are equal.
        before, after: sample of each run at `position`; None beyond its end, or if a run has the reference's order.
        reason: what differs at `position`, in words; None if a run ends at `position` or the runs are equal.
    """

    runs: tuple[str, str]
    ends: tuple[int | None, int | None]
    stop: int | None
    position: int | None
    before: Place | None
    after: Place | None
    reason: str | None
    settings: tuple[ChangedSetting, ...]
    sources: tuple[SharedSource, ...]

    @property
    def are_equal(self) -> bool:
        return self.position is None


def differences(old: RunLock, new: RunLock, *, until: int | None = None) -> RunDifferences:
    """Compares the positions of two runs before `until`; if `until` is None, compares all positions."""
    ends = old.num_samples, new.num_samples
    longest = max(old.end, new.end)
    if until is not None and until > longest:
        raise ConfigError(f"position {until} out of range: the longer run has {longest} samples")
    shorter, longer = sorted(min(lock.end, longest if until is None else until) for lock in (old, new))
    moved, is_stored = first_moved(old, new, shorter), old.is_megatron or new.is_megatron
    position = moved.position if moved is not None else shorter if shorter != longer else None
    stop = shorter if until is None or is_stored else until
    before, after = (
        None if is_stored or position is None or position >= lock.end else place_at(Timeline(lock), position)
        for lock in (old, new)
    )
    return RunDifferences(
        runs=(run_identity(old), run_identity(new)),
        ends=ends,
        stop=None if stop == MOST_SAMPLES else stop,
        position=position,
        before=before,
        after=after,
        reason=None if moved is None else f"{moved.before} → {moved.after}",
        settings=tuple(_changed(old, new)),
        sources=tuple(_shared(old, new)),
    )


def _shared(old: RunLock, new: RunLock) -> Iterator[SharedSource]:
    owners: dict[tuple[object, ...], set[str]] = {}
    for owner in new.sources:
        for pair in owner.pairs:
            owners.setdefault(_content(pair, 6), set()).add(owner.name)
    sources, others = ({source.name: source for source in lock.sources} for lock in (old, new))
    for name in {**sources, **others}:
        pairs = sources[name].pairs if name in sources else ()
        shared = [pair for pair in pairs if _content(pair, 6) in owners]
        yield SharedSource(
            name=name,
            data_before=sum(pair.num_tokens for pair in pairs),
            data_after=others[name].num_tokens if name in others else 0,
            common_data=sum(pair.num_tokens for pair in shared),
            names_after=tuple(sorted({owner for pair in shared for owner in owners[_content(pair, 6)]})),
        )


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
            other += ", with other content, order or positions" if one == other else ""
            yield ChangedSetting(name=f"data of {name}", before=one, after=other)
    for name, described in (("stages", _stages), ("denied", _denials)):
        both = zip_longest(described(old), described(new), fillvalue="none")
        if first := next(((one, other) for one, other in both if one != other), None):
            yield ChangedSetting(name=name, before=first[0], after=first[1])


def _setting(lock: RunLock, name: str) -> object:
    return lock.tokenizer and lock.tokenizer.fingerprint if name == "tokenizer" else getattr(lock, name)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _stages(lock: RunLock) -> list[str]:
    described = []
    for segment in lock.segments:
        shares = ", ".join(f"{name}: {share}" for name, share in lock.ratio_of(segment))
        size = "endless samples" if segment.num_samples is None else f"{segment.num_samples} samples"
        is_whole = mixed_size(segment) in (segment.num_samples, MOST_SAMPLES)
        mixed = "" if is_whole else f", mixed as {mixed_size(segment)} samples"
        described.append(f"{size} of {segment.sequence_length} tokens, from position {segment.start}{mixed} ({shares})")
    return described


def _denials(lock: RunLock) -> list[str]:
    return [
        f"{len(documents)} documents of {lock.sources[source].name} from position {denial.start} on, "
        f"with checksum {zlib.crc32(repr(documents).encode()):08x}"
        for denial in lock.denials
        for source, documents in denial.documents
    ]


def _contents(source: LockedSource) -> list[tuple[object, ...]]:
    return [(*content_of(pair), pair.since) for pair in source.pairs]


def _described(source: LockedSource) -> str:
    held = sum(pair.held_tokens for pair in source.pairs)
    words = f"{counted(len(source.pairs), 'pair')}, {source.num_tokens:,} tokens"
    return f"{words}, {held:,} held out" if held else words
