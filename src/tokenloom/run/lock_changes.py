"""What a new lock has that the old one had not: sources, pairs, segments, denied documents."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock


@dataclass(frozen=True, slots=True, kw_only=True)
class NewData:
    """Pairs that a source has now.

    Attributes:
        source: name of the source.
        is_new: whether all of it is new.
        pairs: the pairs.
    """

    source: str
    is_new: bool
    pairs: tuple[LockedPair, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return sum(pair.num_tokens for pair in self.pairs)

    @property
    def since(self) -> int:
        """The position from which on the first of them is there."""
        return min(pair.since for pair in self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChanges:
    """How a lock differs from an older one.

    Attributes:
        new_data: pairs that were not there, by source.
        gone: names of sources that are not there any more.
        new_segments: segments that were not there, or were otherwise.
        num_denied: documents that are denied now and were not.
        others: settings that differ.
    """

    new_data: tuple[NewData, ...]
    gone: tuple[str, ...]
    new_segments: tuple[LockedSegment, ...]
    num_denied: int
    others: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.new_data or self.gone or self.new_segments or self.num_denied or self.others)


_OTHERS = ("order", "seed", "documents", "windows", "mixing_block", "dataset", "samples", "tokenizer")


def lock_changes(old: RunLock, new: RunLock) -> LockChanges:
    """Returns how a lock differs from an older one."""
    before = {source.name: source for source in old.sources}
    names = {source.name for source in new.sources}
    settings = {name: (_setting(old, name), _setting(new, name)) for name in _OTHERS}
    return LockChanges(
        new_data=tuple(found for source in new.sources if (found := _new_data(source, before.get(source.name)))),
        gone=tuple(name for name in before if name not in names),
        new_segments=tuple(_new_segments(old, new)),
        num_denied=len(_denied(new) - _denied(old)),
        others=tuple(name for name, (one, other) in settings.items() if one != other),
    )


def _setting(lock: RunLock, name: str) -> object:
    settings: dict[str, object] = {
        "order": lock.order,
        "seed": lock.seed,
        "documents": lock.documents,
        "windows": lock.windows,
        "mixing_block": lock.mixing_block,
        "dataset": lock.dataset,
        "samples": dict(lock.samples),
        "tokenizer": lock.tokenizer,
    }
    return settings[name]


def _new_data(source: LockedSource, old: LockedSource | None) -> NewData | None:
    left = Counter(map(_named_content, () if old is None else old.pairs))
    left.subtract(map(_named_content, source.pairs))
    pairs = []
    for pair in reversed(source.pairs):  # of equal ones the last is new
        if left[_named_content(pair)] < 0:
            left[_named_content(pair)] += 1
            pairs.append(pair)
    return NewData(source=source.name, is_new=old is None, pairs=tuple(reversed(pairs))) if pairs else None


def _new_segments(old: RunLock, new: RunLock) -> list[LockedSegment]:
    known = {_facts(old, segment) for segment in old.segments}
    return [segment for segment in new.segments if _facts(new, segment) not in known]


def _facts(lock: RunLock, segment: LockedSegment) -> tuple[object, ...]:
    weights = frozenset((lock.sources[source].name, weight) for source, weight in segment.weights)
    size = segment.num_samples, segment.mixed_as
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
