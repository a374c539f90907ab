"""What a run reads of each source: its plan, where its tokens went, and what two runs have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from tokenloom.cli.options import JsonOption, Position, Written, refuse_usage
from tokenloom.cli.output import Answer, facts_lines, table
from tokenloom.cli.run_options import EXHAUSTED, BatchSizes, RunPath, lock_at, stage_of
from tokenloom.cli.values import date, refuse
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.rendering.card import MOST_ROWS
from tokenloom.rendering.words import LEFT, NEVER, WITHOUT, counted, ledger_columns, name_of, short
from tokenloom.run.audit.ledger import LedgerRow, RunLedger
from tokenloom.run.changes import RunDifferences, differences
from tokenloom.run.lock import RunLock
from tokenloom.run.plan import PlannedReading, RunPlan, closed_at
from tokenloom.run.run import Run
from tokenloom.setting_types import Number

_DATES = "dates"


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
    most = None if options.all else MOST_ROWS
    for segment in found.segments:
        size = "no end" if segment.num_samples is None else counted(segment.num_samples, "sample")
        yield f"\n{stage_of(segment.stage)} from position {marks.of(segment.start)}"
        yield f"  {size} of {segment.sequence_length:,} tokens"
        readings = sorted(segment.readings, key=lambda reading: -reading.weight)
        columns = ("source", "share", "samples", "tokens", "passes", "pass ends at")
        yield from table(columns, [_reading(reading) for reading in readings], most=most)
        for reading in readings[:most]:
            if reading.pass_ends and marks.known(reading.pass_ends[0]):
                yield f"  {name_of(reading.source)}: a pass ends at {marks.of(reading.pass_ends[0])}"
    sources = sorted(found.facts()["sources"], key=lambda source: -source["seen"])
    yield from facts_lines("", {"what becomes of": sources}, most=most)
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


def _reading(reading: PlannedReading) -> tuple[str | int | None, ...]:
    passes = f"{reading.begun_before - reading.left_before / reading.num_windows:,.2f} →"
    if reading.begun_after is not None and reading.left_after is not None:
        passes += f" {reading.begun_after - reading.left_after / reading.num_windows:,.2f}"
    ends = f"{reading.pass_ends[0]:,}" if reading.pass_ends else ""
    if reading.num_pass_ends is None:
        ends += " …" if ends else ""
    elif reading.num_pass_ends > 1:
        ends += f" +{reading.num_pass_ends - 1:,}"
    share = f"{reading.weight / reading.weights if reading.share is None else reading.share:.3%}"
    return reading.source, share, reading.num_samples, reading.num_tokens, passes, ends


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
    opened = Run.open(options.run_path)
    position = options.position_of(options.until_position, opened.lock)
    if position is None and opened.num_samples is None:
        refuse_usage("a run without an end needs --until-step or --until-position")
    found = opened.ledger(until=position, reads_data=not options.no_reading)
    lines = _ledger_lines(options.run_path, found, None if options.all else MOST_ROWS)
    return Answer({"run": opened.identity, **found.as_json()}, lines, 1 if found.balance else 0)


def _ledger_lines(path: str, ledger: RunLedger, most: int | None) -> Iterator[str]:
    yield f"{path}: {counted(ledger.position, 'sample')} of {counted(len(ledger.sources), 'source')}; tokens:"
    for stage in ledger.stages:
        yield f"\n{stage_of(stage.stage)}, positions {stage.start:,} to {stage.stop:,}"
        yield from _row_lines(stage.sources, most)
    yield "\nthe whole run up to there"
    yield from _row_lines(ledger.sources, most)
    total = ledger.total.as_json()
    known = {name: {each: count for each, count in total[name].items() if count} for name in ("tokens", "slots")}
    yield from facts_lines("in all", known)
    yield f"balance {ledger.balance}"


def _row_lines(rows: Sequence[tuple[str, LedgerRow]], most: int | None) -> Iterator[str]:
    ranked = sorted(rows, key=lambda each: -each[1].seen)
    columns = ("source", "samples", "in", "with loss", "without", "never", "left")
    cells = [(name, row.counts.samples, *ledger_columns(row.as_json()["tokens"])) for name, row in ranked]
    yield from table(columns, cells, most=most)
    for name, row in ranked[:most]:
        tokens = row.as_json()["tokens"]
        if words := [f"{words} {tokens[key]:,}" for words, key in (*WITHOUT, *NEVER, *LEFT) if tokens[key]]:
            yield f"  {name_of(name)}: {'; '.join(words)}"


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
    found = differences(lock_at(options.before), lock_at(options.after), until=options.until_position)
    lines = _diff_lines(found, None if options.all else MOST_ROWS)
    return Answer(found.as_json(), lines, 0 if found.are_equal else 1)


def _diff_lines(found: RunDifferences, most: int | None) -> Iterator[str]:
    told = found.as_json()
    sources = sorted(told["sources"] or (), key=lambda source: -source["tokens_before"] - source["tokens_after"])
    shared = [{**source, "names_after": ", ".join(source["names_after"])} for source in sources]
    yield from facts_lines("before: A, after: B", {**told, "sources": shared}, most=most)
    if found.position is not None:
        yield f"the first {found.position:,} positions are the same"
    elif found.stop is None or found.stop in found.ends:
        yield "all positions are the same"
    else:
        yield f"positions before {found.stop:,} are the same"
    if found.sources is None and found.stop is None:
        yield "neither run has an end: --until-position N tells what they have in common"
