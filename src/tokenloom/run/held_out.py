"""Documents that training does not read: held-out ones, which are a dataset of their own, and denied ones.

A holdout depends on the pairs of a source up to each one, so growth does not move it.
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
from tokenloom.run.progress import extra_tokens
from tokenloom.run.settings import CONVERSATIONS

FEWEST_BLOCKS = 32
"""A source holds out single documents where its share would be fewer blocks: a holdout of one block says little."""


def num_blocks(pair: LockedPair) -> int:
    """Returns the number of blocks of a pair; the last one may be shorter."""
    return -(-pair.num_documents // BLOCK_DOCUMENTS)


def holds_blocks(pairs: Sequence[LockedPair], share: Fraction) -> bool:
    """Whether a source that is locked for the first time holds out blocks, not documents."""
    return sum(map(num_blocks, pairs)) * share >= FEWEST_BLOCKS


def with_holdout(
    pairs: Sequence[LockedPair], share: Fraction | None, *, by_blocks: bool, after: Sequence[LockedPair] = ()
) -> list[LockedPair]:
    """Returns pairs with their held-out blocks or documents, whose tokens are not counted yet.

    Up to any pair these come to the share of all pairs so far, rounded to the nearest, half up.
    """
    if share is None:
        return list(pairs)
    units = num_blocks if by_blocks else attrgetter("num_documents")
    totals = accumulate(map(units, pairs), initial=sum(map(units, after)))
    held = (stop - start for start, stop in pairwise(math.floor(total * share + Fraction(1, 2)) for total in totals))
    member = "held_blocks" if by_blocks else "held_documents"
    return [replace(pair, **{member: count}) for pair, count in zip(pairs, held, strict=True)]


def held_numbers(pair: LockedPair, *, key: Key, number: int) -> NDArray[np.int64]:
    """Returns the blocks, or the documents, of a pair that are held out: int64[held], rising."""
    held = pair.held_blocks or pair.held_documents
    units = num_blocks(pair) if pair.held_blocks else pair.num_documents
    permutation = Permutation(units, derive(key, Purpose.HOLDOUT, number))
    return np.sort(permutation.inverse(np.arange(held, dtype=np.int64)))


def held_tokens(pair: LockedPair, lengths: NDArray[np.int32], *, key: Key, number: int) -> int:
    """Returns the tokens of all that is held out of a pair."""
    held = held_numbers(pair, key=key, number=number)
    if pair.held_blocks:
        starts = np.arange(0, pair.num_documents, BLOCK_DOCUMENTS)
        lengths = np.add.reduceat(lengths, starts, dtype=np.int64)
    return int(lengths[held].sum(dtype=np.int64))


def are_held_out(lock: RunLock, source: int, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which documents of a source are held out: bool[num_documents]; opens nothing."""
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
    """What the denials of a run deny of each source, by how many of them are in force."""

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
        """Returns the positions from which on documents of a source are denied, rising; each as often as a denial."""
        return self._starts.get(source, [])

    def level(self, source: int, position: int) -> int:
        """Returns how many denials of a source are in force at a position."""
        return bisect_right(self.starts(source), position)

    def of(self, source: int, level: int) -> tuple[int, ...]:
        """Returns the documents of a source that so many denials deny, rising."""
        return self._documents[source][level] if level else ()


def check_not_emptied(lock: RunLock) -> None:
    """Checks that denials leave something of each source that is still read."""
    denied = DeniedDocuments(lock)
    for source, locked in enumerate(lock.sources):
        starts, count = denied.starts(source), locked.num_documents
        documents = denied.of(source, len(starts))
        if not starts or 2 * len(documents) < count:  # at most half is held out
            continue
        held = are_held_out(lock, source, np.arange(count, dtype=np.int64))
        held[list(documents)] = True
        last = next((each for each in reversed(lock.segments) if source in dict(each.weights)), None)
        if held.all() and last is not None and (last.stop or MOST_SAMPLES) > starts[-1]:
            where = f"from position {starts[-1]} on, but stage {last.stage!r} reads it"
            message = f"all documents of source {locked.name!r} are denied {where}"
            hint = "take it out instead: begin a stage there that gives it no weight, with `tokenloom run amend`"
            raise ConfigError(message, hint=hint)


def holdout_lock(lock: RunLock, *, names: Sequence[str], sequence_length: int) -> RunLock:
    """Returns what is held out as a run of its own: each window once, sources in proportion to what each holds out."""
    if lock.dataset in CONVERSATIONS:
        message = f"no conversations are held out (dataset = {lock.dataset!r})"
        raise ConfigError(message, hint="make a source of its own for those that validate, and give it no weight")
    by_name = {source.name: number for number, source in enumerate(lock.sources)}
    if unknown := [name for name in names if name not in by_name]:
        raise ConfigError(f"{quoted(unknown[0])} is no source of the run", hint=f"it has {', '.join(by_name)}")
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
        message = f"{held}, less than a sample of {sequence_length}"
        raise ConfigError(message, hint='give sources a `holdout` in run.toml, such as "0.1%", before they are locked')
    size = sum(windows.values())
    segment = LockedSegment(
        stage="holdout", start=0, num_samples=size, sequence_length=sequence_length, weights=weights
    )
    denials = tuple(replace(denial, start=0) for denial in lock.denials)
    others: Any = {"documents": "file", "windows": "concat", "segments": (segment,), "consumed": 0}
    return replace(lock, sources=tuple(sources), denials=denials, **others)
