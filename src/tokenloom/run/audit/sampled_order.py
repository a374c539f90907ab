"""Stretches of the order in which a source is read: where in the data the samples begin that follow each other.

What is counted in are samples, not documents: a long document that is read window after window is no shuffle, however
well documents are shuffled. A sample's place is that of its first token in the data, in lengths of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.blending.blended import BlendedDataset
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.shuffle_quality import ShuffleQuality, shuffle_quality
from tokenloom.run.audit.span_table import Int64s, SpanTable
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.run import Run
from tokenloom.storage.settings import ObjectStorageSettings

NUM_STRETCHES = 64
STRETCH = 64
"""Samples that follow each other: 4,096 in all tell blocks of any size, and take some 10 ms once the pairs are open."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledOrder:
    """Some samples of a source, in the order in which a pass reads them.

    Attributes:
        source: name of the source, or prefix of the data.
        positions: int64[num_sampled], places in the order, rising; of a computed order, of its first pass.
        items: int64[num_sampled], places in the data.
        num_positions: samples of the order, or of as much of the pass as is read.
        num_items: places of the data.
    """

    source: str
    positions: Int64s
    items: Int64s
    num_positions: int
    num_items: int

    @property
    def quality(self) -> ShuffleQuality:
        """How well the order is shuffled, as far as these samples tell."""
        return shuffle_quality(self.items, num_items=self.num_items, positions=self.positions)


def sampled_source(
    run: Run,
    source: int,
    *,
    object_storage: ObjectStorageSettings | None = None,
    num_stretches: int = NUM_STRETCHES,
    length: int = STRETCH,
) -> SampledOrder | None:
    """Returns samples of a source of a run whose order is computed, of its first pass; None if it is not read.

    Args:
        run: the run.
        source: number of the source.
        object_storage: how to read what lies in object storage.
        num_stretches, length: how many stretches, of how many samples.

    Raises:
        ConfigError: the order is the reference's, see `sampled_members`.
        DatasetNotFoundError, DatasetFormatError: data are not what was locked.
    """
    timeline, locked = run.timeline, run.lock.sources[source]
    for number, segment in enumerate(run.lock.segments):
        entered = timeline.entered(number)
        leaf = entered.leaf_of(source)
        if leaf is None:
            continue
        given = timeline.num_taken(number, timeline.num_positions(number))[leaf]
        num_windows = min(int(entered.num_windows[leaf]), int(given))
        windows = _stretches(num_windows, num_stretches, length)
        walks = np.full(len(windows), entered.walks[leaf])
        positions = timeline.positions_of(source, walks, windows, sequence_length=segment.sequence_length)
        table = run.trace(np.sort(positions[positions >= 0]))
        return _sampled(
            table,
            source=locked.name,
            num_positions=num_windows,
            sequence_length=segment.sequence_length,
            num_tokens=[pair.num_tokens for pair in locked.pairs],
            object_storage=object_storage,
        )
    return None


def sampled_members(
    dataset: Any,
    *,
    object_storage: ObjectStorageSettings | None = None,
    num_stretches: int = NUM_STRETCHES,
    length: int = STRETCH,
    most: int = 8,
) -> list[SampledOrder]:
    """Returns samples of a dataset whose order is stored, or of those of a blend, the largest first.

    Args:
        dataset: a `GPTDataset`, a dataset of conversations, or a blend of them.
        object_storage: how to read what lies in object storage.
        num_stretches, length: how many stretches, of how many samples.
        most: datasets of a blend that are looked at.

    Raises:
        ConfigError: a dataset does not tell its spans.
    """
    members = dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]
    found = []
    for member in sorted(members, key=len, reverse=True)[:most]:
        table = trace_dataset(member, _stretches(len(member), num_stretches, length))
        found.append(
            _sampled(
                table,
                source=table.source_names[0],
                num_positions=len(member),
                sequence_length=member.config.sequence_length,
                num_tokens=None,
                object_storage=object_storage,
            )
        )
    return found


def _stretches(num_positions: int, num_stretches: int, length: int) -> Int64s:
    """Returns positions of even stretches: int64[num_positions], rising."""
    if num_positions <= num_stretches * length:
        return np.arange(num_positions, dtype=np.int64)
    starts = [(num_positions - length) * number // (num_stretches - 1) for number in range(num_stretches)]
    found: Int64s = (np.array(starts, dtype=np.int64)[:, None] + np.arange(length)).reshape(-1)
    return found


def _sampled(
    table: SpanTable,
    *,
    source: str,
    num_positions: int,
    sequence_length: int,
    num_tokens: Sequence[int] | None,
    object_storage: ObjectStorageSettings | None,
) -> SampledOrder:
    """Returns where the samples of a table begin, all of one source.

    Args:
        table: their spans.
        source, num_positions: as of `SampledOrder`.
        sequence_length: tokens of a sample.
        num_tokens: tokens of the pairs of the source, in their order; None for those of a single pair.
        object_storage: how to read what lies in object storage.
    """
    firsts = table.take(np.flatnonzero(np.diff(table.positions, prepend=-1)))
    firsts = firsts.take(np.argsort(firsts.windows, kind="stable"))
    pairs, rows = firsts.pairs()
    places = firsts.starts.copy()
    total = 0
    first_pair = int(table.pair_rows.first_pairs[firsts.sources[0]]) if len(firsts) else 0
    if num_tokens is None:
        num_tokens = [_opened(table, first_pair, object_storage).num_tokens]
    for number, tokens in enumerate(num_tokens):
        chosen = np.flatnonzero(pairs == first_pair + number)
        if len(chosen):
            opened = _opened(table, first_pair + number, object_storage)
            places[chosen] += opened.token_offsets(rows[chosen]) + total
        total += tokens
    num_items = max(1, -(-total // sequence_length))
    return SampledOrder(
        source=source,
        positions=firsts.windows,
        items=np.minimum(places // sequence_length, num_items - 1),
        num_positions=num_positions,
        num_items=num_items,
    )


def _opened(table: SpanTable, pair: int, object_storage: ObjectStorageSettings | None) -> IndexedDataset:
    return IndexedDataset(table.pair_rows.prefixes[pair], mmap=False, object_storage=object_storage)
