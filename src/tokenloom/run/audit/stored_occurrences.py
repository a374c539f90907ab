"""From documents to positions where the order is stored: one look through the cached index.

Which windows may hold a document, the index of a GPT dataset tells with a few comparisons per row: its places in the
stream, the windows around those, the samples and the positions of these. Of other datasets all spans are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.order.array_order import ArrayOrder
from tokenloom.run.audit.occurrences import Documents, checked_documents, checked_range
from tokenloom.run.audit.pair_rows import PairRows
from tokenloom.run.audit.span_table import Int64s, SpanTable, joined_tables
from tokenloom.run.audit.trace import trace_megatron
from tokenloom.run.lock import RunLock

_ROWS_AT_ONCE = 1 << 22
"""Rows of an index that are looked at together."""

_POSITIONS_AT_ONCE = 1 << 16
"""Positions whose spans are looked at together."""


def find_stored(
    dataset: Any,
    lock: RunLock,
    source: int,
    documents: Documents,
    *,
    start: int = 0,
    stop: int | None = None,
) -> SpanTable:
    """Returns all spans of documents at positions [start, stop) of a run in the reference's order.

    Takes time with the size of the index: about 5 ns per row.

    Args:
        dataset: the run's dataset, as the builder returns it.
        lock: the run.
        source: number of the source.
        documents: numbers of its documents, in any order.
        start: the first position.
        stop: one past the last; None for the end.

    Raises:
        ConfigError: the source has no such document, or there is no such range.
    """
    wanted = checked_documents(lock, source, documents)
    first, last = checked_range(len(dataset), start, stop)
    pair_rows = PairRows.of_lock(lock)
    pairs, rows = pair_rows.locate(np.full(len(wanted), source, dtype=np.int32), wanted)
    by_prefix = {pair_rows.prefixes[pair]: rows[pairs == pair] for pair in np.unique(pairs).tolist()}
    members = dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]
    found = [trace_megatron(dataset, lock, np.empty(0, dtype=np.int64))]
    for number, member in enumerate(members):
        if isinstance(member, MegatronDataset) and (own := by_prefix.get(str(member.dataset_path))) is not None:
            positions = _positions_of(dataset, number, _samples_of(member, own))
            positions = positions[(positions >= first) & (positions < last)]
            for at in range(0, len(positions), _POSITIONS_AT_ONCE):
                table = trace_megatron(dataset, lock, positions[at : at + _POSITIONS_AT_ONCE])
                found.append(table.take((table.sources == source) & np.isin(table.documents, wanted)))
    return joined_tables(found)


def _samples_of(dataset: MegatronDataset, rows: Int64s) -> NDArray[np.bool_]:
    """Returns which samples of a dataset may hold some rows of its pair: bool[num_samples]."""
    count = len(dataset)
    order = dataset.order if isinstance(dataset, GPTDataset) else None
    arrays = order.arrays.open() if isinstance(order, ArrayOrder) else {}
    if "sample_index" not in arrays:
        return np.ones(count, dtype=np.bool_)
    places = _where(arrays["document_index"], rows)
    begins = arrays["sample_index"][:, 0]
    first = np.searchsorted(begins[1:], places, side="left")
    last = np.searchsorted(begins[:-1], places, side="right")
    holds = np.zeros(len(begins) + 1, dtype=np.int64)  # +1 where a document begins to be in windows, -1 behind
    np.add.at(holds, first, 1)
    np.add.at(holds, np.maximum(last, first), -1)
    chosen = np.cumsum(holds)[:-1] > 0
    samples: NDArray[np.bool_] = chosen[arrays["shuffle_index"]]
    return samples


def _positions_of(dataset: Any, number: int, samples: NDArray[np.bool_]) -> Int64s:
    """Returns the positions at which samples of one of the blended datasets stand, rising."""
    if not isinstance(dataset, BlendedDataset):
        return np.flatnonzero(samples)
    found = [np.empty(0, dtype=np.int64)]
    for first in range(0, len(dataset), _ROWS_AT_ONCE):
        positions = np.arange(first, min(first + _ROWS_AT_ONCE, len(dataset)), dtype=np.int64)
        numbers, own = dataset.order.locate(positions)
        here = np.flatnonzero(np.asarray(numbers) == number)
        found.append(positions[here[samples[np.asarray(own)[here]]]])
    dataset.order.check()
    return np.concatenate(found)


def _where(index: NDArray[Any], rows: Int64s) -> Int64s:
    """Returns the places of an index that hold one of some rows."""
    parts: Iterator[Int64s] = (
        first + np.flatnonzero(np.isin(index[first : first + _ROWS_AT_ONCE], rows))
        for first in range(0, len(index), _ROWS_AT_ONCE)
    )
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])
