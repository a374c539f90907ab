"""Where a run reads one document, from its lock and little else: the lengths of the documents of one pair.

In a computed order the place of a document in a pass follows from the lock, from how many tokens each block of its pair
has, and from the lengths within its own block. So the lengths of all other blocks may be any that have the right sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import SourceDocuments, make_source_documents, make_walk_reader
from tokenloom.order.computed_keys import source_key
from tokenloom.order.walk_order import Occurrences
from tokenloom.run.audit.windows_read import Cut, walks_of, windows_read
from tokenloom.run.denied import DeniedDocuments
from tokenloom.run.held_out import held_numbers
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair, LockedSource, RunLock
from tokenloom.run.progress import MOST_WALKS, too_many_walks
from tokenloom.run.timeline import Timeline
from tokenloom.run.walk_sizes import are_packs, extra_tokens

MOST_DOCUMENTS = 1 << 28
"""Documents of a pair: their lengths take 1 GiB."""

_MOST_WORK = 1 << 34
"""Blocks and pairs of all walks that are looked at: some ten seconds."""

_MOST_FOUND = 1 << 24
"""Positions that are looked up."""

_MOST_CUTS = 1 << 26
"""Segments times positions of a mixing block: what cuts may leave over."""

_LONGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReading:
    """Where a document is read in a range of positions.

    Attributes:
        read: the positions, rising.
        denied: positions at which it would be, but is denied: padding stands for it.
    """

    read: tuple[int, ...]
    denied: tuple[int, ...]


def check_readable(lock: RunLock) -> None:
    """Checks that the place of a document follows from the tokens of blocks and the lengths in its own.

    Raises:
        ConfigError: it does not, or the lock asks for too much.
    """
    if lock.is_megatron:
        message = 'expected a run whose order is computed, found `order = "megatron"`'
        raise ConfigError(message, hint="that order follows from a shuffle of all samples, not from the lock")
    if are_packs(lock):
        found = f"`windows = {lock.windows!r}`" if lock.windows == "best_fit" else f"`dataset = {lock.dataset!r}`"
        message = f"expected samples that are windows over all documents, found packs ({found})"
        hint = "in which sample a document is packed depends on the lengths of 32,768 documents around it"
        raise ConfigError(message, hint=hint)
    if len(lock.segments) * lock.mixing_block > _MOST_CUTS:
        found = f"{len(lock.segments)} segments and blocks of {lock.mixing_block}"
        message = f"expected segments times positions of a mixing block up to {_MOST_CUTS}, found {found}"
        raise ConfigError(message)


def own_pair(source: LockedSource, document: int) -> tuple[int, int]:
    """Returns the number of the pair that a document of a source lies in, and its number there.

    Raises:
        ConfigError: there is no such document.
    """
    first = 0
    for number, pair in enumerate(source.pairs):
        if document < first + pair.num_documents:
            return number, document - first
        first += pair.num_documents
    message = f"expected a document of source {source.name!r} in [0, {first}), found {document}"
    raise ConfigError(message)


def reading_of(
    lock: RunLock, source: int, document: int, lengths: NDArray[np.int32], *, start: int, stop: int
) -> DocumentReading:
    """Returns where a document is read at positions [start, stop), by the kernels that training asks.

    Args:
        lock: the run; of other sources than the one asked for, pairs are not needed.
        source: number of the source.
        document: number of the document in it.
        lengths: int32[num_documents] of the pair that it lies in: as they are, or what stands for them.
        start, stop: the positions; they end with the run.

    Raises:
        ConfigError: there is no such document, the lock is none that a run can follow, the lengths are not those of
            the lock, or the range has too many passes.
    """
    check_readable(lock)
    locked = lock.sources[source]
    owner, own = own_pair(locked, document)
    if locked.pairs[owner].num_documents > MOST_DOCUMENTS:
        message = f"expected a pair of at most {MOST_DOCUMENTS} documents, found {locked.pairs[owner].num_documents}"
        raise ConfigError(message)
    key = source_key(lock.seed, locked.name)
    rows = [
        (pair.num_documents, pair.num_tokens - pair.held_tokens, pair.held_blocks, pair.held_documents)
        for pair in locked.pairs
    ]
    documents = make_source_documents(rows, key=key, reads_held=False)
    try:
        documents.open(owner, np.ascontiguousarray(lengths, dtype=np.int32))
    except IndexError as error:
        message = f"pair {owner} of source {locked.name!r}: {error}"
        raise ConfigError(message) from error
    timeline = Timeline(_with_stand_ins(lock, source))
    read = windows_read(timeline, start, stop, sources=[source]).get(source, {})
    _check_work(read, locked, num_tokens=int(lengths[own]))
    walks: dict[Cut, list[int]] = {}
    for walk, cut in walks_of(read):
        walks.setdefault(cut, []).append(walk)
    positions = [
        _positions(timeline, documents, source, document, cut, np.array(some, dtype=np.int64))
        for cut, some in walks.items()
    ]
    found = np.sort(np.concatenate([*positions, np.empty(0, dtype=np.int64)]))
    found = found[(found >= start) & (found < stop)]
    denied = _denied(lock, source, document, found)
    return DocumentReading(read=tuple(found[~denied].tolist()), denied=tuple(found[denied].tolist()))


def stand_in(pair: LockedPair, sums: Sequence[int], own: NDArray[np.int32], *, lock: RunLock, source: str, number: int,
             block: int) -> NDArray[np.int32]:  # fmt: skip
    """Returns lengths for a pair of which only one block is known: int32[num_documents].

    Args:
        pair: the pair, of at most `MOST_DOCUMENTS` documents.
        sums: tokens that are read of each block.
        own: int32[up to 256], the lengths of the block that is known.
        lock: the run.
        source: name of its source.
        number: its place in the source.
        block: number of the block that is known.

    Raises:
        ConfigError: there are no such lengths.
    """
    lengths = np.zeros(pair.num_documents, dtype=np.int32)
    held = np.zeros(0, dtype=np.int64)
    if pair.held_blocks or pair.held_documents:
        held = held_numbers(pair, key=source_key(lock.seed, source), number=number)
    firsts = np.arange(0, pair.num_documents, BLOCK_DOCUMENTS)
    wanted = np.array(sums, dtype=np.int64)
    by_hand = wanted > _LONGEST
    if pair.held_blocks:
        if wanted[held].any():
            raise _impossible(number, int(held[wanted[held] > 0][0]))
    else:
        by_hand[np.unique(held // BLOCK_DOCUMENTS)] = True
    lengths[firsts[~by_hand]] = wanted[~by_hand]
    for other in np.flatnonzero(by_hand).tolist():
        begin, end = other * BLOCK_DOCUMENTS, min((other + 1) * BLOCK_DOCUMENTS, pair.num_documents)
        in_block = () if pair.held_blocks else held[np.searchsorted(held, begin) : np.searchsorted(held, end)]
        left = sums[other]
        for document in np.setdiff1d(np.arange(begin, end), in_block).tolist():
            lengths[document] = min(left, _LONGEST)
            left -= int(lengths[document])
        if left:
            raise _impossible(number, other)
    begin = block * BLOCK_DOCUMENTS
    lengths[begin : begin + len(own)] = own
    is_read = np.ones(len(own), dtype=np.bool_)
    if pair.held_blocks:
        is_read[:] = block not in held
    else:
        is_read[held[(held >= begin) & (held < begin + len(own))] - begin] = False
    if int(own[is_read].sum(dtype=np.int64)) != sums[block]:
        raise _impossible(number, block)
    return lengths


def _impossible(number: int, block: int) -> ConfigError:
    message = f"block {block} of pair {number} has other lengths than its sum says"
    return ConfigError(message)


def _with_stand_ins(lock: RunLock, source: int) -> RunLock:
    """Returns a lock in which other sources have data enough: how much they have moves nothing of this one."""
    shortest = min(segment.sequence_length for segment in lock.segments)
    tokens = min(shortest << 39, 1 << 61)
    pair = LockedPair(
        prefix="other", num_documents=1, num_tokens=tokens, dtype="uint16", idx_bytes=0, index_start_crc32=0
    )
    others = (LockedSource(name=each.name, pairs=(pair,)) for each in lock.sources)
    return replace(
        lock, sources=tuple(lock.sources[source] if number == source else each for number, each in enumerate(others))
    )


def _check_work(read: dict[Cut, list[tuple[int, int]]], source: LockedSource, *, num_tokens: int) -> None:
    """Checks that it takes seconds to look at all walks."""
    num_walks = 0
    num_found = 0
    for cut, ranges in read.items():
        walks = sum((stop - 1) // cut.num_windows - first // cut.num_windows + 1 for first, stop in ranges)
        num_walks += walks
        num_found += walks * (num_tokens // cut.sequence_length + 2)
        if (last := (ranges[-1][1] - 1) // cut.num_windows) >= MOST_WALKS:
            raise too_many_walks(source.name, "the last position that is asked for", last)
    size = len(source.pairs) + max(-(-pair.num_documents // BLOCK_DOCUMENTS) for pair in source.pairs)
    if num_walks * size > _MOST_WORK or num_found > _MOST_FOUND:
        message = f"expected fewer passes through source {source.name!r} to look at, found {num_walks}"
        raise ConfigError(message, hint="ask for fewer positions")


def _positions(
    timeline: Timeline, documents: SourceDocuments, source: int, document: int, cut: Cut, walks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the positions of a run at which a document stands in walks of one cut, rising: int64[count]."""
    reader = make_walk_reader(
        documents,
        [(int(walks[0]), cut.first_pair, cut.last_pair, cut.num_windows)],
        is_shuffled=timeline.lock.documents == "shuffled",
        window_length=cut.sequence_length,
        extra=extra_tokens(timeline.lock),
    )
    found = Occurrences(*reader.occurrences(walks, np.array([document], dtype=np.int64)))
    length = cut.sequence_length
    positions = timeline.positions_of(source, found.walks, found.windows, sequence_length=length)
    return positions[positions >= 0]


def _denied(lock: RunLock, source: int, document: int, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns at which positions a document is denied: bool[num_positions]."""
    denials = DeniedDocuments(lock)
    if not denials:
        return np.zeros(len(positions), dtype=np.bool_)
    levels = denials.levels(positions, [source] * len(positions))
    known = {level: document in denials.of(source, level) for level in set(levels)}
    return np.array([known[level] for level in levels], dtype=np.bool_)
