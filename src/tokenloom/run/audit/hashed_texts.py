"""Whole texts, found by the hashes beside pairs: `PREFIX.hashes`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import read_document_hashes
from tokenloom.inputs.parsing import Texts
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.lock import RunLock
from tokenloom.storage.settings import ObjectStorageSettings

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
