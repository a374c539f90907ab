"""Texts and token ids, searched in all documents of a run: streamed, so memory is bounded; see `token_scan.py`.

Whole texts are found by the hashes beside pairs: `PREFIX.hashes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import read_document_hashes
from tokenloom.inputs.parsing import Texts
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.audit.token_scan import StableIds, fit, places_of_ids
from tokenloom.run.lock import RunLock
from tokenloom.storage.settings import ObjectStorageSettings

_MOST_FOUND = 100_000


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
    stable = StableIds.of(text, tokenizer)
    found = set()
    for source, document, start, (pair, row) in _found(lock, stable.ids, object_storage):
        if (place := stable.place_in(pair, row, start, tokenizer)) is not None:
            begin, end = place
            found.add(Match(source=source, document=document, start=begin, length=end - begin))
    return _sorted(list(found))


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
            if not fit(ids, each.dtype):
                first += each.num_documents
                continue
            pair = IndexedDataset(each.prefix, object_storage=object_storage)
            for stretch in places_of_ids(pair, ids):
                num_found += len(stretch.rows)
                if num_found > _MOST_FOUND:
                    message = f"expected tokens that stand at {_MOST_FOUND:,} places or fewer, found more"
                    raise ConfigError(message, hint="look for more of them at a time")
                for row, start in zip(stretch.rows.tolist(), stretch.starts.tolist(), strict=True):
                    yield source, first + row, start, (pair, row)
            first += each.num_documents


def _sorted(found: list[Match]) -> list[Match]:
    return sorted(found, key=lambda match: (match.source, match.document, match.start))


_ROWS_AT_ONCE = 1 << 22


def find_whole_texts(
    lock: RunLock, texts: Sequence[str], *, object_storage: ObjectStorageSettings | None = None
) -> tuple[list[tuple[int, int]], list[str]]:
    """Returns the documents whose text is one of these, as (source, document), rising, and the pairs without hashes.

    Args:
        lock: the run.
        texts: whole texts, as they stood in the input.
        object_storage: how to read what lies in object storage.

    Raises:
        ConfigError: no pair has hashes.
        DatasetFormatError, DatasetNotFoundError, StorageError: hashes are damaged, or belong to other data.
    """
    wanted = hash_documents([Texts(texts=list(dict.fromkeys(texts)))], len(set(texts)))
    found, missing = [], []
    for source, locked in enumerate(lock.sources):
        first = 0
        for pair in locked.pairs:
            hashes = read_document_hashes(pair.prefix, is_checked=True, object_storage=object_storage)
            if hashes is None:
                missing.append(pair.prefix)
            elif len(entries := _where(hashes, wanted)):
                boundaries = IndexedDataset(pair.prefix, object_storage=object_storage).document_indices
                for entry in entries.tolist():
                    begin, end = boundaries[entry : entry + 2].tolist()
                    found += [(source, first + row) for row in range(begin, end)]
            first += pair.num_documents
    num_pairs = sum(len(source.pairs) for source in lock.sources)
    if len(missing) == num_pairs:
        message = f"expected pairs with hashes of their documents, found none among {num_pairs}"
        raise ConfigError(message, hint="`tokenloom preprocess --document-hashes` writes PREFIX.hashes")
    return found, missing


def _where(hashes: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the rows that are one of those wanted, rising."""
    found = [np.empty(0, dtype=np.int64)]
    for first in range(0, len(hashes), _ROWS_AT_ONCE):
        rows = hashes[first : first + _ROWS_AT_ONCE]
        some = np.flatnonzero(np.isin(rows[:, 0], wanted[:, 0]))
        same = (rows[some][:, None, :] == wanted[None, :, :]).all(axis=2).any(axis=1)
        found.append(first + some[same])
    return np.concatenate(found)
