"""Where the tokens of a run went up to a position, and what filled its samples: counts that come to exactly nothing.

Passes, walks and what is left of them are those of the plan, of a run that ends at the position. What is in the slots
of samples is a matter of numbers where nothing is masked, and is counted from the data where they decide it.

Of the reference's order the index arrays are looked through once: a dataset is one stream over as many epochs as its
samples need, whose windows are shuffled together; with its first sample all of them have begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.slot_counts import NO_SLOTS, SlotCounts, count_windows
from tokenloom.errors import ConfigError
from tokenloom.progress import also_told, task
from tokenloom.run.audit.ledger_counts import CHUNK_SAMPLES, CHUNK_SLOTS, Dropped, Part, Report, SlotCounter
from tokenloom.run.audit.ledger_rows import LedgerRow, LedgerStage, RunLedger, summed, summed_over_stages
from tokenloom.run.audit.pair_rows import PairRows
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import check_position
from tokenloom.run.lock import RunLock
from tokenloom.run.plan import PlannedReading, PlannedSegment, closed_at, plan_of
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.take_maps import Int64s
from tokenloom.run.walk_sizes import WalkSizes, are_packs, extra_tokens

if TYPE_CHECKING:
    from tokenloom.run.run import Run


def ledger_of(
    run: Run, *, until: int | None = None, reads_data: bool = True, report: Report | None = None
) -> RunLedger:
    """Returns where the tokens of a run went before a position, see `Run.ledger`.

    One in the reference's order is built, if it is not yet, and its index is looked through.
    """
    position = run.num_samples if until is None else until
    if position is None:
        message = "expected a position up to which the ledger goes, of a run without an end, found none"
        raise ConfigError(message, hint="name one, as a step or a position")
    check_position(run.lock, position)
    with task("ledger", unit="samples") as advance:
        return _ledger(run, position, reads_data=reads_data, report=also_told(advance, report))


def _ledger(run: Run, position: int, *, reads_data: bool, report: Report) -> RunLedger:
    lock = run.lock
    if lock.is_megatron:
        return stored_ledger(run.dataset(), lock, position, reads_data=reads_data, report=report)
    closed = closed_at(lock, position)
    if not closed.segments:
        return RunLedger(position=0, stages=(), sources=tuple((source.name, LedgerRow()) for source in lock.sources))
    dataset: RunDataset = run.dataset()
    return _Closing(closed, SlotCounter(dataset, report=report), reads_data=reads_data).ledger(position)


class _Closing:
    """The ledger of a lock that ends where the ledger does."""

    def __init__(self, lock: RunLock, counter: SlotCounter, *, reads_data: bool) -> None:
        self._lock = lock
        self._counter = counter
        self._reads_data = reads_data
        self._sizes = WalkSizes(lock.sources, lock)
        self._numbers = {source.name: number for number, source in enumerate(lock.sources)}
        self._are_packs = are_packs(lock)

    def ledger(self, position: int) -> RunLedger:
        segments = plan_of(self._lock).segments
        followers = self._followers(segments)
        left: dict[str, int] = {}
        rows: dict[str, list[LedgerRow]] = {source.name: [] for source in self._lock.sources}
        stages = []
        for number, segment in enumerate(segments):
            made = []
            for reading in segment.readings:
                row = self._row(number, segment, reading, left.pop(reading.source, 0))
                remains = row.not_reached
                match followers[number, reading.source]:
                    case "handed on":
                        row, left[reading.source] = replace(row, not_reached=0, handed_on=remains), remains
                    case "given up":
                        row = replace(row, not_reached=0, given_up=remains)
                made.append((reading.source, row))
                rows[reading.source].append(row)
            assert segment.num_samples is not None
            stages.append(
                LedgerStage(
                    stage=segment.stage,
                    start=segment.start,
                    stop=segment.start + segment.num_samples,
                    sequence_length=segment.sequence_length,
                    sources=tuple(made),
                )
            )
        sources = tuple((name, summed_over_stages(found)) for name, found in rows.items())
        return RunLedger(position=position, stages=tuple(stages), sources=sources)

    def _followers(self, segments: Sequence[PlannedSegment]) -> dict[tuple[int, str], str]:
        """Returns what becomes of what a segment leaves of a source: "handed on", "given up" or "not reached"."""
        found: dict[tuple[int, str], str] = {}
        later: dict[str, int] = {}
        phases = [0]
        for before, segment in pairwise(segments):
            phases.append(phases[-1] + (segment.sequence_length != before.sequence_length))
        for number in reversed(range(len(segments))):
            for reading in segments[number].readings:
                goes_on = later.get(reading.source) == phases[number]
                ends = "not reached" if phases[number] == phases[-1] else "given up"
                found[number, reading.source] = "handed on" if goes_on else ends
                later[reading.source] = phases[number]
        return found

    def _row(self, number: int, segment: PlannedSegment, reading: PlannedReading, brought: int) -> LedgerRow:
        """Returns a row in which all that is left counts as not reached."""
        assert reading.num_samples is not None
        assert reading.walks is not None
        assert reading.left_after is not None
        assert segment.num_samples is not None
        source, length = self._numbers[reading.source], segment.sequence_length
        offered = [
            self._sizes.tokens(source, walks.first_pair, walks.last_pair) * walks.count for walks in reading.walks
        ]
        row = LedgerRow(brought=brought, offered=sum(offered))
        part = Part(segment=number, source=source, start=segment.start, stop=segment.start + segment.num_samples)
        if not self._reads_data and self._counter.needs_looking(part):
            return self._not_counted(row, reading, length)
        row = replace(row, counts=self._counter.count(part, reading.num_samples))
        if not self._are_packs:
            return self._with_windows(row, reading, length)
        for walks in reading.walks:
            row = replace(row, dropped=row.dropped + self._counter.dropped(source, walks, length))
        if reading.left_after:
            row = replace(row, not_reached=row.balance[0])
        return row

    def _with_windows(self, row: LedgerRow, reading: PlannedReading, length: int) -> LedgerRow:
        """Returns a row of windows with the tokens that are in none of those that are read."""
        assert reading.walks is not None
        assert reading.left_after is not None
        windows = sum(walks.num_windows * walks.count for walks in reading.walks)
        first = sum(walks.count for walks in reading.walks) * extra_tokens(self._lock)
        tail = row.offered - windows * length - first
        return replace(row, first_of_passes=first, dropped_tail=tail, not_reached=reading.left_after * length)

    def _not_counted(self, row: LedgerRow, reading: PlannedReading, length: int) -> LedgerRow:
        """Returns a row of samples that nobody looks into."""
        assert reading.num_samples is not None
        counts = count_windows(reading.num_samples, sequence_length=length, extra=1)
        slots = counts.slots if self._lock.dataset not in CONVERSATIONS else 0
        tokens = row.brought + row.offered if self._are_packs else counts.tokens
        row = replace(row, counts=_not_counted(reading.num_samples, slots, tokens))
        return row if self._are_packs else self._with_windows(row, reading, length)


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
