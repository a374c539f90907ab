"""The ledger of a run in the reference's order: one look through its index arrays.

A dataset there is one stream over as many epochs as its samples need, whose windows are shuffled together: with its
first sample all of them have begun.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.slot_counts import NO_SLOTS, SlotCounts, count_windows
from tokenloom.errors import ConfigError
from tokenloom.run.audit.ledger_conversations import Dropped
from tokenloom.run.audit.ledger_counts import CHUNK_SAMPLES, CHUNK_SLOTS, Report
from tokenloom.run.audit.ledger_rows import LedgerRow, LedgerStage, RunLedger, summed
from tokenloom.run.audit.pair_rows import PairRows
from tokenloom.run.lock import RunLock
from tokenloom.run.take_maps import Int64s

_ROWS_AT_ONCE = 1 << 22


def stored_ledger(
    dataset: Any, lock: RunLock, position: int, *, reads_data: bool = True, report: Report | None = None
) -> RunLedger:
    """Returns where the tokens of a run in the reference's order went before a position.

    Args:
        dataset: the run's dataset, as the builder returns it.
        lock: the run.
        position: the position.
        reads_data: whether to look into the data where they decide what has loss; else that is not counted.
        report: hears of samples that were looked into.
    """
    pair_rows = PairRows.of_lock(lock)
    by_prefix = {prefix: number for number, prefix in enumerate(pair_rows.prefixes)}
    members = dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]
    rows: list[list[LedgerRow]] = [[] for _ in lock.sources]
    for member, samples in zip(members, _samples(dataset, len(members), position), strict=True):
        source = pair_rows.source_of(by_prefix[str(member.dataset_path)])
        if len(samples):
            rows[source].append(_row(member, samples, reads_data=reads_data, report=report))
    segment = lock.segments[0]
    sources = tuple((each.name, summed(found)) for each, found in zip(lock.sources, rows, strict=True))
    stage = LedgerStage(
        stage=segment.stage,
        start=0,
        stop=position,
        sequence_length=segment.sequence_length,
        sources=tuple(sources[number] for number, _ in segment.weights),
    )
    return RunLedger(position=position, stages=(stage,) if position else (), sources=sources)


def _samples(dataset: Any, count: int, position: int) -> list[Int64s]:
    """Returns which samples of each blended dataset stand before a position, rising."""
    if not isinstance(dataset, BlendedDataset):
        return [np.arange(position, dtype=np.int64)]
    found: list[list[Int64s]] = [[np.empty(0, dtype=np.int64)] for _ in range(count)]
    for first in range(0, position, _ROWS_AT_ONCE):
        positions = np.arange(first, min(first + _ROWS_AT_ONCE, position), dtype=np.int64)
        numbers, samples = (np.asarray(each) for each in dataset.order.locate(positions))
        for number in np.unique(numbers).tolist():
            found[number].append(np.ascontiguousarray(samples[numbers == number], dtype=np.int64))
    dataset.order.check()
    return [np.sort(np.concatenate(parts)) for parts in found]


def _row(dataset: Any, samples: Int64s, *, reads_data: bool, report: Report | None) -> LedgerRow:
    """Returns the row of a dataset of which some samples were read, each once."""
    if isinstance(dataset, ConversationSamples):
        return _row_of_conversations(dataset, samples, reads_data=reads_data, report=report)
    if not isinstance(dataset, GPTDataset):
        message = f"expected documents or conversations, for a ledger, found {type(dataset).__name__}"
        raise ConfigError(message)
    config, plan = dataset.config, dataset.epoch_plan
    length, extra = config.sequence_length, config.num_extra_tokens
    offered, left = plan.num_epochs * plan.tokens_per_epoch, plan.num_samples - len(samples)
    row = LedgerRow(offered=offered)
    if not dataset.counts_need_tokens:
        row = replace(row, counts=count_windows(len(samples), sequence_length=length, extra=extra))
    elif reads_data:
        row = replace(row, counts=_counts(dataset, samples, report))
    else:
        slots = len(samples) * length
        row = replace(row, counts=_not_counted(len(samples), slots, slots))
    tail = offered - plan.num_samples * length - extra
    return replace(row, first_of_passes=extra, dropped_tail=tail, not_reached=left * length)


def _row_of_conversations(
    dataset: ConversationSamples, samples: Int64s, *, reads_data: bool, report: Report | None
) -> LedgerRow:
    whole = dataset.ledger()
    dropped = Dropped(empty=whole.dropped_empty, long=whole.dropped_long, untrainable=whole.dropped_untrainable)
    row = LedgerRow(offered=whole.exposed.tokens)
    if not reads_data:
        return replace(row, counts=_not_counted(len(samples), 0, row.offered))
    row = replace(row, counts=_counts(dataset, samples, report), dropped=dropped)
    left = whole.not_reached.tokens if len(samples) == whole.num_samples else row.balance[0]
    return replace(row, not_reached=left)


def _counts(dataset: GPTDataset | ConversationSamples, samples: Int64s, report: Report | None) -> SlotCounts:
    size = max(1, min(CHUNK_SAMPLES, CHUNK_SLOTS // dataset.config.sequence_length))
    found = NO_SLOTS
    for first in range(0, len(samples), size):
        chunk: NDArray[np.int64] = samples[first : first + size]
        found += dataset.slot_counts(chunk)
        if report is not None:
            report(len(chunk))
    return found


def _not_counted(samples: int, slots: int, tokens: int) -> SlotCounts:
    return SlotCounts(samples=samples, slots=slots, tokens=tokens, not_counted_slots=slots, not_counted_tokens=tokens)
