"""Where the tokens of a run went up to a position, and what filled its samples: counts that come to exactly nothing.

Passes, walks and what is left of them are those of the plan, of a run that ends at the position. What is in the slots
of samples is a matter of numbers where nothing is masked, and is counted from the data where they decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenloom.datasets.slot_counts import SlotCounts, count_windows
from tokenloom.errors import ConfigError
from tokenloom.progress import also_told, task
from tokenloom.run.audit.ledger_counts import Part, Report, SlotCounter
from tokenloom.run.audit.ledger_rows import LedgerRow, LedgerStage, RunLedger, summed_over_stages
from tokenloom.run.dataset import RunDataset
from tokenloom.run.lock import RunLock
from tokenloom.run.passes import closed_at
from tokenloom.run.plan import PlannedReading, PlannedSegment, plan_of
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.walk_sizes import WalkSizes, are_packs, extra_tokens

if TYPE_CHECKING:
    from tokenloom.run.run import Run


def ledger_of(
    run: Run, *, until: int | None = None, reads_data: bool = True, report: Report | None = None
) -> RunLedger:
    """Returns where the tokens of a run went before a position.

    Args:
        run: the run; one in the reference's order is built, if it is not yet, and its index is looked through.
        until: the position; None for all of a run that has an end.
        reads_data: whether to look into the data where they decide what has loss; else that is not counted.
        report: hears of samples that were looked into.

    Raises:
        ConfigError: the run has no such position, or no end.
        DatasetNotFoundError, DatasetFormatError: data that are looked into are not there, or others.
    """
    end = run.num_samples
    if until is None and end is None:
        message = "expected a position up to which the ledger goes, of a run without an end, found none"
        raise ConfigError(message, hint="name one, as a step or a position")
    position = end if until is None else until
    assert position is not None
    if position < 0 or (end is not None and position > end):
        message = f"expected a position in [0, {end if end is not None else '2**60'}] of the run, found {position}"
        raise ConfigError(message)
    with task("ledger", unit="samples") as advance:
        return _ledger(run, position, reads_data=reads_data, report=also_told(advance, report))


def _ledger(run: Run, position: int, *, reads_data: bool, report: Report) -> RunLedger:
    lock = run.lock
    if lock.is_megatron:
        from tokenloom.run.audit.ledger_stored import stored_ledger

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
        counts = SlotCounts(
            samples=reading.num_samples,
            slots=slots,
            tokens=tokens,
            not_counted_slots=slots,
            not_counted_tokens=tokens,
        )
        row = replace(row, counts=counts)
        return row if self._are_packs else self._with_windows(row, reading, length)
