"""What a run reads of each source: its plan, where its tokens went, and what two runs have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any

from tokenloom.cli.options import JsonOption, Position, Written, refuse_usage
from tokenloom.cli.output import Answer
from tokenloom.cli.run_options import EXHAUSTED, BatchSizes, RunPath, folded, largest, lock_at, row_line, stage_of
from tokenloom.cli.values import date, refuse
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.rendering.words import LEFT, NEVER, SLOTS, WITHOUT, counted, ledger_columns, name_of, short
from tokenloom.run.audit.ledger import LedgerRow, RunLedger, summed
from tokenloom.run.changes import RunDifferences, SharedSource, differences
from tokenloom.run.lock import RunLock
from tokenloom.run.plan import PlannedReading, PlannedSegment, RunPlan, closed_at
from tokenloom.run.run import Run
from tokenloom.setting_types import Number

_DATES = "dates"
_MOST_ROWS = 12
_NAME = 16
_READINGS = {"source": _NAME, "share": 8, "samples": 9, "tokens": 8, "passes": 15, "pass ends at": 16}
_SOURCES = {"what becomes of": _NAME, "passes": 8, "offered": 9, "seen": 8, "unseen": 9, "cut off": 9}
_LEDGER = {"source": _NAME, "samples": 9, "in": 9, "with loss": 9, "without": 9, "never": 9, "left": 9}
_SHARED = {"tokens of samples": 20, "in A": 9, "in B": 9, "common": 9, "of A": 8, "data in common": 16}
"""Columns of tables, with their widths."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunPath, BatchSizes):
    """What a run will read, from its lock alone: per stage and source samples, tokens and passes, where passes end,
    where a source has been read as often as it may be, and what stays unseen; with dates, if its speed is given.

    Attributes:
        tokens_per_second: speed of the training run, all ranks.
        start: when it reads what follows on what was consumed.
        all: all sources, not only the largest of a stage.
        json: print one JSON object: run, cut_short, num_samples, num_tokens, segments, sources, caps and end, with step
            and date of stages and caps where they are known.
    """

    tokens_per_second: Annotated[float | None, Written(metavar="N", group=_DATES)] = None
    start: Annotated[datetime | None, Written(metavar="DATE", parse=date, group=_DATES)] = None
    all: bool = False


def run_plan(options: PlanOptions) -> Answer:
    """Returns the plan."""
    opened = Run.open(options.run_path)
    found, marks = opened.plan(), _Marks(options, opened.lock)
    told = found.as_json()
    for each, name in [*((each, "start") for each in told["segments"]), *((each, "position") for each in told["caps"])]:
        each.update(marks.known(each[name]))
    if found.num_samples is not None:
        told["end"] = {"position": found.num_samples, **marks.known(found.num_samples)}
    record = {"run": opened.identity, "cut_short": opened.lock.cut_short, **told}
    return Answer(record, _plan_lines(options, opened, found, marks), 0 if opened.lock.cut_short is None else 1)


def _plan_lines(options: PlanOptions, opened: Run, found: RunPlan, marks: _Marks) -> Iterator[str]:
    samples = "samples without end" if found.num_samples is None else counted(found.num_samples, "sample")
    tokens = "" if found.num_tokens is None else f", {short(found.num_tokens)} tokens"
    yield f"{options.run_path}: {counted(len(found.sources), 'source')}, {samples}{tokens}"
    yield f"run {opened.identity}"
    most = None if options.all else _MOST_ROWS
    for segment in found.segments:
        yield from _segment_lines(segment, marks, most)
    yield ""
    yield row_line(_SOURCES, _SOURCES)
    shown, rest = largest(found.sources, lambda source: source.seen_tokens, most)
    counts = attrgetter("offered_tokens", "seen_tokens", "unseen_tokens", "uncovered_tokens")
    for source in shown:
        yield row_line((source.name, f"{source.num_passes:,}", *map(short, counts(source))), _SOURCES)
    if rest:
        sums = map(sum, zip(*map(counts, rest), strict=True))
        yield row_line((f"{len(rest):,} others", "", *map(short, sums)), _SOURCES)
    for cap in found.caps:
        if cap.position is not None:
            passes = counted(cap.max_passes, "pass")
            yield f"cap: {name_of(cap.source)} has had its {passes} at position {marks.of(cap.position)}:"
            yield f"     {EXHAUSTED[cap.follows or 'stop']}"
    if found.num_samples is not None:
        early = "" if opened.lock.cut_short is None else ", before the stages end"
        yield f"end: position {marks.of(found.num_samples)}{early}"


class _Marks:
    """Positions with step and date, where these are known: dates count from when the first unread position is read."""

    def __init__(self, options: PlanOptions, lock: RunLock) -> None:
        self._lock = lock
        self._sizes: BatchSizeSchedule | None = options.batch_sizes(lock)
        self._speed, self._start = options.tokens_per_second, options.start
        if self._speed is None and self._start is not None:
            refuse("expected --tokens-per-second beside --start, found none")
        if self._speed is not None and not self._speed > 0:
            refuse(f"expected --tokens-per-second above 0, found {self._speed}")

    def known(self, position: int | None) -> dict[str, Any]:
        """Returns what is known of a position beside its number, for JSON."""
        found: dict[str, Any] = {}
        if position is not None and self._sizes is not None:
            found["step"] = self._sizes.step_of_position(position)
        if position is not None and self._speed is not None:
            tokens = _tokens_before(self._lock, position) - _tokens_before(self._lock, self._lock.consumed)
            found["seconds"] = tokens / self._speed
            if self._start is not None:
                found["date"] = self._date_of(position, found["seconds"]).isoformat()
        return found

    def _date_of(self, position: int, seconds: float) -> datetime:
        assert self._start is not None
        try:
            return self._start + timedelta(seconds=seconds)
        except OverflowError as error:
            message = f"expected a date up to the year 9999 for position {position}, found a later one"
            raise ConfigError(message, hint="is the speed in tokens per second, of all ranks?") from error

    def of(self, position: int) -> str:
        """Returns a position in words: with its date to the minute, or without a start the time from there on."""
        known = self.known(position)
        words = [f"step {known['step']:,}"] if "step" in known else []
        if "date" in known:
            words.append(f"{self._date_of(position, known['seconds']):%Y-%m-%d %H:%M}")
        elif (seconds := known.get("seconds")) is not None:
            units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
            unit, size = next((each for each in units if abs(seconds) >= 2 * each[1]), units[-1])
            words.append(f"after {seconds / size:,.1f} {unit}")
        return f"{position:,}" + (f" ({', '.join(words)})" if words else "")


def _tokens_before(lock: RunLock, position: int) -> int:
    return sum((segment.num_samples or 0) * segment.sequence_length for segment in closed_at(lock, position).segments)


def _segment_lines(segment: PlannedSegment, marks: _Marks, most: int | None) -> Iterator[str]:
    size = "no end" if segment.num_samples is None else counted(segment.num_samples, "sample")
    tokens = "" if segment.num_tokens is None else f", {short(segment.num_tokens)} tokens in all"
    yield f"\n{stage_of(segment.stage)} from position {marks.of(segment.start)}"
    yield f"  {size} of {segment.sequence_length:,} tokens{tokens}"
    yield row_line(_READINGS, _READINGS)
    shown, rest = largest(segment.readings, lambda reading: reading.weight, most)
    for reading in shown:
        yield row_line(_reading(reading), _READINGS)
    if rest:
        samples = sum(reading.num_samples or 0 for reading in rest)
        share = sum(reading.weight for reading in rest) / rest[0].weights
        many = (f"{len(rest):,} others", f"{share:.3%}")
        yield row_line((*many, "" if segment.num_samples is None else short(samples), "", "", ""), _READINGS)
    for reading in shown:
        if reading.pass_ends and marks.known(reading.pass_ends[0]):
            yield f"  {name_of(reading.source, width=_NAME)}: a pass ends at {marks.of(reading.pass_ends[0])}"


def _reading(reading: PlannedReading) -> Iterator[str]:
    yield reading.source
    yield f"{reading.weight / reading.weights if reading.share is None else reading.share:.3%}"
    yield "" if reading.num_samples is None else short(reading.num_samples)
    yield "" if reading.num_tokens is None else short(reading.num_tokens)
    before = reading.begun_before - reading.left_before / reading.num_windows
    after = None
    if reading.begun_after is not None and reading.left_after is not None:
        after = reading.begun_after - reading.left_after / reading.num_windows
    yield f"{before:,.2f} → {'' if after is None else f'{after:,.2f}'}"
    ends = f"{reading.pass_ends[0]:,}" if reading.pass_ends else ""
    more = None if reading.num_pass_ends is None else reading.num_pass_ends - 1
    yield ends + (f" +{more:,}" if more is not None and more > 0 else " …" if more is None and ends else "")


@dataclass(frozen=True, kw_only=True)
class LedgerOptions(RunPath, BatchSizes):
    """Where the tokens of a run went before a step: per stage and source how many its passes hold, which of them were
    seen with loss, which without and why, which are never seen, and which are left; and what filled the samples. All
    comes to a balance of 0; the exit status is 1 if it does not. Data are looked into only where they decide what has
    loss.

    Attributes:
        until_position: up to where, as samples from 0 on (default: the whole run).
        no_reading: count nothing for which data would have to be looked into.
        all: all sources, not only the largest of a stage.
        json: print one JSON object: run, position, balance, total, sources and stages.
    """

    until_position: Position | None = None
    no_reading: bool = False
    all: bool = False


def ledger(options: LedgerOptions) -> Answer:
    """Returns the ledger; 1 if it does not balance."""
    opened = Run.open(options.run_path)
    position = options.position_of(options.until_position, opened.lock)
    if position is None and opened.num_samples is None:
        refuse_usage("a run without an end needs --until-step or --until-position")
    found = opened.ledger(until=position, reads_data=not options.no_reading)
    lines = _ledger_lines(options.run_path, found, None if options.all else _MOST_ROWS)
    return Answer({"run": opened.identity, **found.as_json()}, lines, 1 if found.balance else 0)


def _ledger_lines(path: str, ledger: RunLedger, most: int | None) -> Iterator[str]:
    yield f"{path}: {counted(ledger.position, 'sample')} of {counted(len(ledger.sources), 'source')}; tokens:"
    for stage in ledger.stages:
        yield f"\n{stage_of(stage.stage)}, positions {stage.start:,} to {stage.stop:,}"
        yield from _row_lines(stage.sources, most)
    yield "\nthe whole run up to there"
    yield from _row_lines(ledger.sources, most)
    total = ledger.total.as_json()
    tokens, slots = total["tokens"], total["slots"]
    yield "\ntokens of the passes that were begun"
    yield _sum_line("in the passes", tokens["offered"])
    if tokens["read_twice"]:
        yield _sum_line("read by two samples, of long documents", tokens["read_twice"])
    yield _sum_line("seen with loss", -tokens["with_loss"])
    yield from (_sum_line(words, -tokens[name]) for words, name in (*WITHOUT, *NEVER, *LEFT) if tokens[name])
    yield "slots of the samples"
    yield _sum_line(f"in {counted(total['samples'], 'sample')}", slots["all"])
    yield from (_sum_line(words, -slots[name]) for words, name in SLOTS if slots[name] or name == "with_loss")
    yield f"balance {ledger.balance}"


def _row_lines(rows: Sequence[tuple[str, LedgerRow]], most: int | None) -> Iterator[str]:
    yield row_line(_LEDGER, _LEDGER)
    shown, rest = largest(rows, lambda each: each[1].seen, most)
    for name, row in shown:
        yield row_line(_cells(name, row), _LEDGER)
        tokens = row.as_json()["tokens"]
        words = [f"{words} {tokens[name]:,}" for words, name in (*WITHOUT, *NEVER, *LEFT) if tokens[name]]
        if words:
            yield folded("; ".join(words), "    ", "    ")
    if rest:
        yield row_line(_cells(f"{len(rest):,} others", summed(row for _, row in rest)), _LEDGER)


def _cells(name: str, row: LedgerRow) -> list[str]:
    return [name, short(row.counts.samples), *map(short, ledger_columns(row.as_json()["tokens"]))]


def _sum_line(words: str, number: int) -> str:
    return f"  {words:<42} {number:>+30,}"


@dataclass(frozen=True, kw_only=True)
class DiffOptions(JsonOption):
    """Compare two runs by their locks: the first position that differs and what stands there in each, which settings
    differ, and per source the tokens of samples that both read, wherever in the run, and of data with the same
    checksums under any name. Each is named by its run.toml or by a lock, such as an older one. The exit status is 0 if
    all positions are the same, 1 if not.

    Attributes:
        before: a run.toml, or a lock.
        after: another.
        until_position: compare the positions before N (default: all).
        all: all settings and sources, not only the first and largest.
        json: print one JSON object: position, before, after, reason, runs, ends, stop, settings and sources.
    """

    before: Annotated[str, Written(metavar="A", is_positional=True)]
    after: Annotated[str, Written(metavar="B", is_positional=True)]
    until_position: Number | None = None
    all: bool = False


def run_diff(options: DiffOptions) -> Answer:
    """Returns how they differ; 1 if they do."""
    found = differences(lock_at(options.before), lock_at(options.after), until=options.until_position)
    lines = _diff_lines(found, None if options.all else _MOST_ROWS)
    return Answer(found.as_json(), lines, 0 if found.are_equal else 1)


def _diff_lines(found: RunDifferences, most: int | None) -> Iterator[str]:
    for label, identity, end in zip("AB", found.runs, found.ends, strict=True):
        yield f"{label}: run {identity[:16]}, {'positions without end' if end is None else f'{end:,} positions'}"
    if found.position is None:
        what = "all positions" if found.stop is None or found.stop in found.ends else f"positions before {found.stop:,}"
        yield f"{what} are the same"
    else:
        same = f"the first {found.position:,} positions are the same; " if found.position else ""
        yield f"{same}position {found.position:,} is"
        for label, place, end in zip("AB", (found.before, found.after), found.ends, strict=True):
            what = "behind the end" if end is not None and found.position >= end else "another sample"
            if place is not None:
                what = f"{stage_of(place.stage)}, source {name_of(place.source)}, pass {place.pass_number}: "
                what += f"sample {place.window:,} of walk {place.walk}"
            yield f"  {label}: {what}"
        if found.reason is not None and (found.before == found.after):
            yield folded(found.reason, "  ", "      ")
    for changed in found.settings[:most]:
        yield folded(f"{changed.name}: {changed.before} → {changed.after}", "", "    ")
    if most is not None and len(found.settings) > most:
        yield f"… and {len(found.settings) - most:,} more; --all shows them"
    if found.sources is not None:
        yield from _shared_lines(found.sources, most)
    elif found.stop is None:
        yield "neither run has an end: --until-position N tells what they have in common"


def _shared_lines(sources: tuple[SharedSource, ...], most: int | None) -> Iterator[str]:
    yield row_line(_SHARED, _SHARED, indent="")
    shown, rest = largest(sources, lambda source: source.tokens_before + source.tokens_after, most)
    for source in shown:
        share = f"{source.common_tokens / source.tokens_before:.3%}" if source.tokens_before else ""
        data = f"{short(source.common_data)} of {short(source.data_before)}" if source.data_before else ""
        counts = (source.tokens_before, source.tokens_after, source.common_tokens)
        yield row_line((source.name, *map(short, counts), share, data), _SHARED, indent="")
    for source in shown:
        others = [name for name in source.names_after if name != source.name]
        if others:
            yield f"  data of {name_of(source.name)} are in B as {', '.join(map(name_of, others[:3]))}"
    if rest:
        yield f"  … and {len(rest):,} others; --all shows them"
