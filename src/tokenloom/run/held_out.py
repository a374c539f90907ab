"""Documents that training does not read: held-out documents, which form a validation dataset, and denied documents.

Held-out documents of a pair depend only on this pair and on earlier pairs of the source, so growth never changes them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels.permutation import Key, Permutation, Purpose, derive
from tokenloom.numbers import quoted
from tokenloom.order.walk_order import source_key
from tokenloom.run.lock import BLOCK_DOCUMENTS, MOST_SAMPLES, LockedPair, LockedSegment, RunLock
from tokenloom.run.settings import CONVERSATIONS
from tokenloom.run.source_progress import extra_tokens

FEWEST_BLOCKS = 32
"""Minimum number of blocks in a holdout. A source with a smaller holdout holds out single documents instead."""


def num_blocks(pair: LockedPair) -> int:
    return -(-pair.num_documents // BLOCK_DOCUMENTS)


def holds_blocks(pairs: Sequence[LockedPair], share: Fraction) -> bool:
    """Returns whether the holdout of a new source is large enough to consist of blocks, not of single documents."""
    return sum(map(num_blocks, pairs)) * share >= FEWEST_BLOCKS


def with_holdout(
    pairs: Sequence[LockedPair], share: Fraction | None, *, by_blocks: bool, after: Sequence[LockedPair] = ()
) -> list[LockedPair]:
    """Returns the pairs with `held_blocks` or `held_documents` set; `held_tokens` stays 0.

    After each pair, the number of blocks or documents held out so far is `share` of those in the source so far, rounded
    half up. `after` are the pairs that precede `pairs` in the source.
    """
    if share is None:
        return list(pairs)
    units = num_blocks if by_blocks else attrgetter("num_documents")
    totals = accumulate(map(units, pairs), initial=sum(map(units, after)))
    held = (stop - start for start, stop in pairwise(math.floor(total * share + Fraction(1, 2)) for total in totals))
    member = "held_blocks" if by_blocks else "held_documents"
    return [replace(pair, **{member: count}) for pair, count in zip(pairs, held, strict=True)]


def held_numbers(pair: LockedPair, *, key: Key, number: int) -> NDArray[np.int64]:
    """Returns the sorted indices, int64[num_held], of held-out blocks or documents in pair `number` of a source."""
    held = pair.held_blocks or pair.held_documents
    units = num_blocks(pair) if pair.held_blocks else pair.num_documents
    permutation = Permutation(units, derive(key, Purpose.HOLDOUT, number))
    return np.sort(permutation.inverse(np.arange(held, dtype=np.int64)))


def held_tokens(pair: LockedPair, lengths: NDArray[np.int32], *, key: Key, number: int) -> int:
    held = held_numbers(pair, key=key, number=number)
    if pair.held_blocks:
        starts = np.arange(0, pair.num_documents, BLOCK_DOCUMENTS)
        lengths = np.add.reduceat(lengths, starts, dtype=np.int64)
    return int(lengths[held].sum(dtype=np.int64))


def are_held_out(lock: RunLock, source: int, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns whether each of `documents` of a source is held out, bool[num_documents]; opens no data."""
    locked = lock.sources[source]
    key = source_key(lock.seed, locked.name)
    found = np.zeros(len(documents), dtype=np.bool_)
    numbers, units = locked.locate(documents)
    for number in np.unique(numbers).tolist():
        pair, here = locked.pairs[number], numbers == number
        if pair.held_blocks or pair.held_documents:
            own = units[here] // BLOCK_DOCUMENTS if pair.held_blocks else units[here]
            found[here] = np.isin(own, held_numbers(pair, key=key, number=number))
    return found


class DeniedDocuments:
    """The documents that the first n denials of each source deny, for n = 0, 1, 2, …; n is called the level."""

    def __init__(self, lock: RunLock) -> None:
        self._starts: dict[int, list[int]] = {}
        self._documents: dict[int, list[tuple[int, ...]]] = {}
        for denial in sorted(lock.denials, key=lambda denial: denial.start):
            for source, documents in denial.documents:
                self._starts.setdefault(source, []).append(denial.start)
                known = self._documents.setdefault(source, [()])
                known.append(tuple(sorted({*known[-1], *documents})))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def starts(self, source: int) -> list[int]:
        """Returns the start position of each denial of a source, sorted; repeats are kept."""
        return self._starts.get(source, [])

    def level(self, source: int, position: int) -> int:
        """Returns the number of denials of a source that are in force at a position."""
        return bisect_right(self.starts(source), position)

    def of(self, source: int, level: int) -> tuple[int, ...]:
        """Returns the indices of the documents that the first `level` denials of a source deny, ascending."""
        return self._documents[source][level] if level else ()


def check_not_emptied(lock: RunLock) -> None:
    """Raises an error if all documents of a source are denied or held out while a stage still reads the source."""
    denied = DeniedDocuments(lock)
    for source, locked in enumerate(lock.sources):
        starts, count = denied.starts(source), locked.num_documents
        documents = denied.of(source, len(starts))
        if not starts or 2 * len(documents) < count:  # a holdout has at most half of the documents
            continue
        held = are_held_out(lock, source, np.arange(count, dtype=np.int64))
        held[list(documents)] = True
        last = next((each for each in reversed(lock.segments) if source in dict(each.weights)), None)
        if held.all() and last is not None and (last.stop or MOST_SAMPLES) > starts[-1]:
            where = f"from position {starts[-1]} on, but stage {last.stage!r} still reads the source"
            message = f"all documents of source {locked.name!r} are denied or held out {where}"
            raise ConfigError(message, hint="begin a stage without this source at that position: `tokenloom run amend`")


def holdout_lock(lock: RunLock, *, names: Sequence[str], sequence_length: int) -> RunLock:
    """Returns the lock of a run that reads each held-out window once; a source's weight is its number of windows."""
    if lock.dataset in CONVERSATIONS:
        message = f"runs of conversations have no holdout, got dataset {lock.dataset!r}"
        raise ConfigError(message, hint="put validation conversations into a source without a weight")
    by_name = {source.name: number for number, source in enumerate(lock.sources)}
    if unknown := [name for name in names if name not in by_name]:
        raise ConfigError(f"the run has no source {quoted(unknown[0])}", hint=f"pass one of {', '.join(by_name)}")
    nothing: Any = {"held_tokens": 0, "held_blocks": 0, "held_documents": 0, "since": 0}
    sources = []
    for each in lock.sources:
        pairs = tuple(replace(pair, num_tokens=pair.held_tokens, **nothing) for pair in each.pairs)
        sources.append(replace(each, pairs=pairs, max_passes=None))
    extra = extra_tokens(lock)
    windows = {
        number: max(0, source.num_tokens - extra) // sequence_length
        for number, source in enumerate(sources)
        if not names or source.name in names
    }
    weights = tuple((number, count) for number, count in windows.items() if count)
    if not weights or (names and len(weights) < len(windows)):
        empty = next(sources[number] for number, count in windows.items() if not count)
        held = f"source {empty.name!r} holds out {empty.num_tokens} tokens"
        message = f"{held}, fewer than a sample of {sequence_length} tokens"
        raise ConfigError(message, hint='set `holdout = "0.1%"` of the source in run.toml before the first lock')
    size = sum(windows.values())
    segment = LockedSegment(
        stage="holdout", start=0, num_samples=size, sequence_length=sequence_length, weights=weights
    )
    denials = tuple(replace(denial, start=0) for denial in lock.denials)
    others: Any = {"documents": "file", "windows": "concat", "segments": (segment,), "consumed": 0}
    return replace(lock, sources=tuple(sources), denials=denials, **others)
