"""Texts and token ids, looked for in all documents of a run: streamed, so memory is bounded.

How a text is cut into tokens depends, at its ends, on what stands around it. So the ids in its midst are looked for
that are the same whatever that is, and what is found is decoded with its neighbourhood and compared with the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.numbers import quoted
from tokenloom.run.lock import RunLock
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.settings import ObjectStorageSettings

_TOKENS_AT_ONCE = 1 << 22
_MOST_FOUND = 100_000
_AROUND = (" ", "\n", "a", "E", "1", ".", '"', "_", "é", "中")
"""What may stand before or behind a text, for where its tokens are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where something that was looked for stands.

    Attributes:
        source: number of the source.
        document: number of the document in it.
        start: the first of its tokens, from the start of the document.
        length: tokens; of a text all those that hold a part of it.
    """

    source: int
    document: int
    start: int
    length: int


def find_ids(lock: RunLock, ids: Sequence[int], *, object_storage: ObjectStorageSettings | None = None) -> list[Match]:
    """Returns where ids stand one after the other within a document, of all sources; also those held out or denied.

    Reads all tokens, at about 1 ns each where they are in memory.

    Args:
        lock: the run.
        ids: the ids, one or more.
        object_storage: how to read what lies in object storage.

    Raises:
        ConfigError: there are no ids, one is not in the vocabulary, or they stand at more than 100,000 places.
        DatasetNotFoundError, DatasetFormatError, StorageError: data cannot be read.
    """
    _check_ids(lock, ids)
    found = [
        Match(source=source, document=document, start=start, length=len(ids))
        for source, document, start, _ in _found(lock, ids, object_storage)
    ]
    return _sorted(found)


def find_text(
    lock: RunLock, text: str, tokenizer: Any, *, object_storage: ObjectStorageSettings | None = None
) -> list[Match]:
    """Returns where a text stands within a document, of all sources; also those held out or denied.

    A text that was tokenized otherwise than its tokens in the midst of other text, as with dropout, is not found.

    Args:
        lock: the run.
        text: the text, some words long.
        tokenizer: the tokenizer of the run, with `tokenize` and `detokenize`.
        object_storage: how to read what lies in object storage.

    Raises:
        ConfigError: the text is too short to have tokens that do not depend on what stands around it, or stands at
            more than 100,000 places.
        DatasetNotFoundError, DatasetFormatError, StorageError: data cannot be read.
    """
    ids, before, behind = stable_ids(text, tokenizer)
    found = set()
    for source, document, start, pair_row in _found(lock, ids, object_storage):
        pair, row = pair_row
        first = max(0, start - before)
        last = min(int(pair.sequence_lengths[row]), start + len(ids) + behind)
        tokens = pair.get(row, offset=first, length=last - first).tolist()
        place = _place_of(text, tokens, start - first, len(ids), tokenizer)
        if place is not None:
            begin, end = place
            found.add(Match(source=source, document=document, start=first + begin, length=end - begin))
    return _sorted(list(found))


def stable_ids(text: str, tokenizer: Any) -> tuple[list[int], int, int]:
    """Returns ids that a text has wherever it stands, and how many tokens before and behind them it may have at most.

    Args:
        text: the text.
        tokenizer: what has `tokenize`.

    Raises:
        ConfigError: there are none.
    """
    alone = [int(each) for each in tokenizer.tokenize(text)]
    first, last = 0, len(alone)
    for around in _AROUND:
        before = [int(each) for each in tokenizer.tokenize(around + text)]
        behind = [int(each) for each in tokenizer.tokenize(text + around)]
        first = max(first, len(alone) - _common(alone[::-1], before[::-1]))
        last = min(last, _common(alone, behind))
    first, last = min(first + 1, len(alone)), last - 1  # what these did not show
    if first >= last:
        message = f"expected a text of some words, found {quoted(text)}, whose tokens depend on what stands around it"
        raise ConfigError(message, hint="give more of it, or look for the ids themselves")
    # Of what is before and behind them, a token has a byte or more.
    num_before, num_behind = (len(tokenizer.detokenize(each).encode()) for each in (alone[:first], alone[last:]))
    return alone[first:last], num_before + 1, num_behind + 1


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many ids two sequences begin with alike."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _place_of(text: str, tokens: list[int], at: int, count: int, tokenizer: Any) -> tuple[int, int] | None:
    """Returns the fewest tokens that hold a text, `count` of them from `at` on among them; None if it is not there."""

    def holds(begin: int, end: int) -> bool:
        return text in tokenizer.detokenize(tokens[begin:end])

    if not holds(0, len(tokens)):
        return None
    for begin in range(at, -1, -1):
        end = next((end for end in range(at + count, len(tokens) + 1) if holds(begin, end)), None)
        if end is not None and not holds(begin + 1, end) and not holds(begin, end - 1):
            return begin, end
    return None


def _check_ids(lock: RunLock, ids: Sequence[int]) -> None:
    if not ids:
        message = "expected ids of tokens to look for, found none"
        raise ConfigError(message)
    bound = None if lock.tokenizer is None else lock.tokenizer.vocab_size
    if (wrong := next((each for each in ids if each < 0 or (bound is not None and each >= bound)), None)) is not None:
        message = f"expected ids of tokens from 0 on{'' if bound is None else f', below {bound}'}, found {wrong}"
        raise ConfigError(message)


def _found(
    lock: RunLock, ids: Sequence[int], object_storage: ObjectStorageSettings | None
) -> Iterator[tuple[int, int, int, tuple[IndexedDataset, int]]]:
    """Yields source, document, first token, and the pair with the row there, of each place that has these ids."""
    num_found = 0
    for source, locked in enumerate(lock.sources):
        first = 0
        for each in locked.pairs:
            limits = np.iinfo(np.dtype(each.dtype))
            if limits.min <= min(ids) and max(ids) <= limits.max:
                pair = IndexedDataset(each.prefix, object_storage=object_storage)
                for row, start in _found_in(pair, np.array(ids, dtype=each.dtype)):
                    num_found += 1
                    if num_found > _MOST_FOUND:
                        message = f"expected tokens that stand at {_MOST_FOUND:,} places or fewer, found more"
                        raise ConfigError(message, hint="look for more of them at a time")
                    yield source, first + row, start, (pair, row)
            first += each.num_documents


def _found_in(pair: IndexedDataset, ids: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yields the sequence and the first token of each place of a pair that has these ids."""
    for rows, starts, lengths in _stretches(pair.sequence_lengths, overlap=len(ids) - 1):
        tokens = _tokens_of(pair, rows, starts, lengths)
        candidates = np.flatnonzero(tokens[: len(tokens) - len(ids) + 1] == ids[0])
        for place in range(1, len(ids)):
            candidates = candidates[tokens[candidates + place] == ids[place]]
        ends = np.cumsum(lengths)
        pieces = np.searchsorted(ends, candidates, side="right")
        inside = candidates + len(ids) <= ends[pieces]
        for candidate, piece in zip(candidates[inside].tolist(), pieces[inside].tolist(), strict=True):
            yield int(rows[piece]), int(starts[piece] + candidate - (ends[piece] - lengths[piece]))


def _tokens_of(
    pair: IndexedDataset, rows: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """Returns the tokens of whole sequences in a row, or of a part of one; from object storage as one range."""
    if len(rows) > 1 and is_remote(pair.path_prefix):
        return np.concatenate(pair[int(rows[0]) : int(rows[-1]) + 1])
    return pair.gather(rows, starts, lengths)


def _stretches(
    lengths: NDArray[np.int32], *, overlap: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yields spans of all sequences, in order: rows, starts, lengths, some million tokens each.

    A sequence that is cut has `overlap` tokens in both parts. What holds no sequence that is longer is left out.
    """
    size = _TOKENS_AT_ONCE + overlap
    at = 0
    while at < len(lengths):
        some = lengths[at : at + _TOKENS_AT_ONCE].astype(np.int64)
        stop = max(1, int(np.searchsorted(np.cumsum(some), size, side="right")))
        rows, own = np.arange(at, at + stop, dtype=np.int64), some[:stop]
        if stop == 1 and own[0] > size:
            for start in range(0, int(own[0]) - overlap, _TOKENS_AT_ONCE):
                length = min(size, int(own[0]) - start)
                yield rows, np.array([start], dtype=np.int64), np.array([length], dtype=np.int64)
        elif own.max() > overlap:
            yield rows, np.zeros(stop, dtype=np.int64), own
        at += stop


def _sorted(found: list[Match]) -> list[Match]:
    return sorted(found, key=lambda match: (match.source, match.document, match.start))
