"""The ledger of a run: what became of its tokens before a position, and what filled its samples. Counts must balance.

Numbers of passes, walks and remaining tokens come from the plan of the run, as if the run ended there. The use of
slots is computed; if the loss mask depends on token ids, data are read to count the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from operator import add
from typing import Any

import numpy as np

from tokenloom.datasets.slot_counts import NO_SLOTS, NOTHING, Count, SlotCounts, count_windows
from tokenloom.run.audit.trace import positions_reading
from tokenloom.run.dataset import RunDataset
from tokenloom.run.held_out import DeniedDocuments, are_held_out
from tokenloom.run.lock import Int64s
from tokenloom.run.plan import PlannedReading, PlannedSegment, PlannedWalks, closed_at, plan_of
from tokenloom.run.settings import CONVERSATIONS
from tokenloom.run.source_progress import WalkSizes, are_packs, extra_tokens

Report = Callable[[int], None]  # called with the number of samples read since the last call
_CHUNK_SLOTS = 1 << 20
_CHUNK_SAMPLES = 1 << 15  # maximum number of slots and samples read at a time


def chunks_of(positions: Int64s, sequence_length: int) -> Iterator[Int64s]:
    size = max(1, min(_CHUNK_SAMPLES, _CHUNK_SLOTS // sequence_length))
    yield from (positions[first : first + size] for first in range(0, len(positions), size))


def not_counted(samples: int, slots: int, tokens: int) -> SlotCounts:
    """Returns counts for samples whose data are not read: the use of all slots and tokens is unknown."""
    return SlotCounts(samples=samples, slots=slots, tokens=tokens, not_counted_slots=slots, not_counted_tokens=tokens)


class LedgerCount:
    """Counts the tokens of a run and the slots of its samples; reads no data if `report` (for progress) is None."""

    def __init__(self, dataset: RunDataset, report: Report | None) -> None:
        self._dataset, self._lock, self._report = dataset, dataset.lock, report
        self._sizes = WalkSizes(dataset.lock.sources, dataset.lock)
        self._numbers = {source.name: number for number, source in enumerate(dataset.lock.sources)}
        self._denied = DeniedDocuments(dataset.lock)
        self._are_packs = are_packs(self._lock)
        self._is_plain = not self._are_packs and not dataset.counts_need_tokens
        self._has_conversations = self._lock.dataset in CONVERSATIONS
        self._dropped_of_pairs: dict[tuple[int, int, int], list[Count]] = {}

    def ledger(self, position: int) -> RunLedger:
        segments = plan_of(closed_at(self._lock, position)).segments if position else ()
        begun = [{reading.source: reading.left_before for reading in segment.readings} for segment in segments]
        left: dict[str, int] = {}
        rows = dict.fromkeys(self._numbers, LedgerRow())
        stages = []
        for number, segment in enumerate(segments):
            made = []
            stop = segment.start + (segment.num_samples or 0)
            counts = self._counts(number, segment, stop)
            other_lengths = any(each.sequence_length != segment.sequence_length for each in segments[number:])
            for reading in segment.readings:
                name = reading.source
                row = self._row(reading, segment.sequence_length, stop, left.pop(name, 0), counts)
                remains = row.not_reached
                if next((each[name] for each in begun[number + 1 :] if name in each), 0):
                    row, left[name] = replace(row, not_reached=0, handed_on=remains), remains
                elif other_lengths:
                    row = replace(row, not_reached=0, given_up=remains)
                made.append((name, row))
                rows[name] += row
            known = _of(segment, "stage", "start", "sequence_length")
            stages.append(LedgerStage(**known, stop=stop, sources=tuple(made)))
        # in sums over stages, tokens that one stage hands on to another cancel out
        sources = ((name, replace(row, brought=0, handed_on=row.handed_on - row.brought)) for name, row in rows.items())
        return RunLedger(position=position, stages=tuple(stages), sources=tuple(sources))

    def _row(
        self, reading: PlannedReading, length: int, stop: int, brought: int, looked_into: Mapping[int, SlotCounts]
    ) -> LedgerRow:
        """Returns the row of a source in a segment; all remaining tokens of passes count as `not_reached`."""
        source, extra = self._numbers[reading.source], extra_tokens(self._lock)
        walks, samples = reading.walks or (), reading.num_samples or 0
        offered = sum(self._sizes.tokens(source, each.first_pair, each.last_pair) * each.count for each in walks)
        is_counted = self._report is not None or not self._needs_reading(source, stop)
        if is_counted:
            counts = looked_into.get(source, NO_SLOTS)
            if self._is_plain:
                counts += count_windows(samples - counts.samples, sequence_length=length, extra=extra)
        else:
            slots = samples * length
            tokens = brought + offered if self._are_packs else slots
            counts = not_counted(samples, 0 if self._has_conversations else slots, tokens)
        row = LedgerRow(brought=brought, offered=offered, counts=counts)
        if not self._are_packs:
            first = sum(each.count for each in walks) * extra
            tail = offered - first - sum(each.num_windows * each.count for each in walks) * length
            if reading.taken_over:
                tail += brought - reading.taken_over * length
            not_reached = (reading.left_after or 0) * length
            return replace(row, first_of_passes=first, dropped_tail=tail, not_reached=not_reached)
        if is_counted and self._has_conversations:
            row += summed(self._dropped(source, each, length) for each in walks)
        return replace(row, not_reached=row.balance[0]) if is_counted and reading.left_after else row

    def _dropped(self, source: int, walks: PlannedWalks, length: int) -> LedgerRow:
        """Counts the conversations that walks drop; scans lengths and roles of each pair once."""
        found = [NOTHING] * 3
        for number in range(walks.first_pair, walks.last_pair):
            key = source, number, length
            if key not in self._dropped_of_pairs:
                member = self._dataset.member(source, length)
                assert member.taken is not None  # set for conversations
                exposure, first = member.taken.exposure_of(number), member.data.pairs.first_of(number)
                documents = np.arange(first, first + len(exposure.shares), dtype=np.int64)
                is_read = ~are_held_out(self._lock, source, documents)
                reasons = exposure.empty, exposure.too_long, exposure.untrainable
                self._dropped_of_pairs[key] = [exposure.count(each & is_read) for each in reasons]
            found = list(map(add, found, self._dropped_of_pairs[key]))
        empty, long, untrainable = (count * walks.count for count in found)
        return LedgerRow(dropped_empty=empty, dropped_long=long, dropped_untrainable=untrainable)

    def _needs_reading(self, source: int, stop: int) -> bool:
        return not self._is_plain or any(start < stop for start in self._denied.starts(source))

    def _counts(self, number: int, segment: PlannedSegment, stop: int) -> dict[int, SlotCounts]:
        """Counts, by source, the slots of a segment's samples, except samples whose data need not be read."""
        start, counts = segment.start, dict[int, SlotCounts]()
        sources = [source for source, _ in self._lock.segments[number].weights]
        if self._report is None or not any(self._needs_reading(source, stop) for source in sources):
            return counts
        chunks: Iterable[Int64s]
        if self._is_plain:  # only denied documents need reading
            denied = [
                positions_reading(self._dataset, source, documents, start=max(start, denial.start), stop=stop)
                for denial in self._lock.denials
                if denial.start < stop
                for source, documents in denial.documents
                if source in sources
            ]
            chunks = chunks_of(np.unique(np.concatenate(denied)), segment.sequence_length)
        else:
            pieces = (np.arange(at, min(at + _CHUNK_SAMPLES, stop)) for at in range(start, stop, _CHUNK_SAMPLES))
            chunks = chain.from_iterable(chunks_of(piece, segment.sequence_length) for piece in pieces)
        for positions in chunks:
            for source, found in self._dataset.slot_counts(positions).items():
                counts[source] = counts.get(source, NO_SLOTS) + found
            self._report(len(positions))
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What became of a source's tokens in a segment, and what filled its samples there; or a sum of several rows.

    The tokens `brought` + `offered` were read (`counts`), are lost (`first_of_passes`, `dropped_…`, `given_up`), or
    remain (`handed_on`, `not_reached`).

    Attributes:
        brought: remaining tokens of passes that began in earlier stages.
        offered: tokens of the passes that begin in this segment.
        counts: slots of the samples, and the tokens read into them.
        first_of_passes: first tokens of passes, which are never a label.
        dropped_tail: tokens after the last whole window of a pass, or lost by a change of sequence length; negative if
            shorter samples read tokens that longer samples had dropped.
        dropped_empty, dropped_long, dropped_untrainable: conversations that are in no sample; see `ChatLedger`.
        handed_on: remaining tokens of passes that later stages continue.
        given_up: remaining tokens of passes that end early because another sequence length follows.
        not_reached: remaining tokens of unfinished passes at the end of the ledger.
        balance: tokens and slots that are not accounted for; 0 unless a count is wrong.
    """

    brought: int = 0
    offered: int = 0
    counts: SlotCounts = NO_SLOTS
    first_of_passes: int = 0
    dropped_tail: int = 0
    dropped_empty: Count = NOTHING
    dropped_long: Count = NOTHING
    dropped_untrainable: Count = NOTHING
    handed_on: int = 0
    given_up: int = 0
    not_reached: int = 0

    def __add__(self, other: LedgerRow) -> LedgerRow:
        return LedgerRow(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    @property
    def dropped_tokens(self) -> int:
        """Tokens of the conversations that no sample contains."""
        return self.dropped_empty.tokens + self.dropped_long.tokens + self.dropped_untrainable.tokens

    @property
    def seen(self) -> int:
        """Tokens in samples, with or without loss."""
        return self.counts.tokens

    @property
    def balance(self) -> tuple[int, int]:
        """(tokens, slots) that are not accounted for; a number below 0 means that some were counted twice."""
        slots, tokens = self.counts.balance
        never = self.first_of_passes + self.dropped_tail + self.dropped_tokens + self.given_up
        tokens += self.brought + self.offered - self.seen - never - self.handed_on - self.not_reached
        return tokens, slots

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object with `samples`, `tokens`, `dropped_conversations`, `slots` and `balance`."""
        counts, (tokens, slots) = self.counts, self.balance
        masked = _of(counts, "with_loss", "eod_masked", "prompt")
        dropped = {name: asdict(getattr(self, f"dropped_{name}")) for name in ("empty", "long", "untrainable")}
        return {
            "samples": counts.samples,
            "tokens": {
                **_of(self, "brought", "offered"),
                "read_twice": counts.read_twice,
                **masked,
                "denied": counts.denied_tokens,
                "pad_id": counts.pad_id,
                "first_token": counts.first_tokens + self.first_of_passes,
                **_of(counts, "rearranged", "truncated"),
                "not_counted": counts.not_counted_tokens,
                "dropped_tail": self.dropped_tail,
                "dropped_conversations": self.dropped_tokens,
                **_of(self, "handed_on", "given_up", "not_reached"),
            },
            "dropped_conversations": dropped,
            "slots": {
                "all": counts.slots,
                **masked,
                "denied": counts.denied_slots,
                **_of(counts, "pad_id", "no_label", "padding"),
                "not_counted": counts.not_counted_slots,
            },
            "balance": abs(tokens) + abs(slots),
        }


def _of(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStage:
    """The ledger of a segment at positions [start, stop); `sources` has (name of the source, row)."""

    stage: str
    start: int
    stop: int
    sequence_length: int
    sources: tuple[tuple[str, LedgerRow], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger:
    """The ledger of a run before `position`: rows per segment, and for each source (name, sum of the source's rows)."""

    position: int
    stages: tuple[LedgerStage, ...]
    sources: tuple[tuple[str, LedgerRow], ...]

    @property
    def total(self) -> LedgerRow:
        """The sum over all sources."""
        return summed(row for _, row in self.sources)

    @property
    def balance(self) -> int:
        """Sum of the absolute balances of all rows; 0 unless a count is wrong."""
        rows = [row for stage in self.stages for _, row in stage.sources] + [row for _, row in self.sources]
        return sum(abs(number) for row in rows for number in row.balance)

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object with `position`, `balance`, `total`, `sources`, `stages`; each stage has `sources`."""
        stages = [
            {
                **_of(stage, "stage", "start", "stop", "sequence_length"),
                "sources": [{"source": name, **row.as_json()} for name, row in stage.sources],
                "total": summed(row for _, row in stage.sources).as_json(),
            }
            for stage in self.stages
        ]
        return {
            "position": self.position,
            "balance": self.balance,
            "total": self.total.as_json(),
            "sources": [{"source": name, **row.as_json()} for name, row in self.sources],
            "stages": stages,
        }


def summed(rows: Iterable[LedgerRow]) -> LedgerRow:
    return sum(rows, start=LedgerRow())
