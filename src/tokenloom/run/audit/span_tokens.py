"""The tokens of spans, read again from their pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.storage.settings import ObjectStorageSettings

_TOKENS_AT_ONCE = 1 << 22


def span_tokens(table: SpanTable, *, object_storage: ObjectStorageSettings | None = None) -> list[NDArray[Any]]:
    """Returns the tokens of each span, in the dtype of its pair; none of documents that are denied.

    Args:
        table: the spans.
        object_storage: how to read what lies in object storage.

    Raises:
        DatasetNotFoundError, DatasetFormatError, StorageError: a pair cannot be read.
    """
    found: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)] * len(table)
    pairs, rows = table.pairs()
    wanted = ~table.denied
    for pair in np.unique(pairs[wanted]).tolist():
        opened = IndexedDataset(table.pair_rows.prefixes[pair], object_storage=object_storage)
        chosen = np.flatnonzero(wanted & (pairs == pair))
        pieces = np.cumsum(table.lengths[chosen]) // _TOKENS_AT_ONCE
        for piece in np.unique(pieces).tolist():
            some = chosen[pieces == piece]
            tokens = opened.gather(rows[some], table.starts[some], table.lengths[some])
            for number, part in zip(some.tolist(), np.split(tokens, np.cumsum(table.lengths[some])[:-1]), strict=True):
                found[number] = part
    return found
