"""`tokenloom run plan`: what a run will read of each source, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.cli.run_common import BatchSizes, RunPath, largest, print_row, stage_of
from tokenloom.cli.values import date
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.rendering.words import counted, name_of, short
from tokenloom.run.lock import RunLock
from tokenloom.run.plan import Pace, PlannedReading, PlannedSegment, PlannedSource, RunPlan
from tokenloom.run.run import Run

_DATES = "dates"
_MOST_ROWS = 12
_NAME = 16
_HEADINGS = ("source", "share", "samples", "tokens", "passes", "pass ends at")
_WIDTHS = (_NAME, 8, 9, 8, 15, 16)
_LEDGER_HEADINGS = ("what becomes of", "passes", "offered", "seen", "unseen", "cut off")
_LEDGER_WIDTHS = (_NAME, 8, 9, 8, 9, 9)


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
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
    json: bool = False


def run(options: Options) -> int:
    """Prints the plan."""
    opened = Run.open(options.run_path)
    plan, marks = opened.plan(), _Marks(options, opened.lock)
    if options.json:
        print_json({"run": opened.identity, "cut_short": opened.lock.cut_short, **_described(plan, marks)})
        return 0 if opened.lock.cut_short is None else 1
    samples = "samples without end" if plan.num_samples is None else counted(plan.num_samples, "sample")
    tokens = "" if plan.num_tokens is None else f", {short(plan.num_tokens)} tokens"
    print(f"{options.run_path}: {counted(len(plan.sources), 'source')}, {samples}{tokens}")
    print(f"run {opened.identity}")
    most = None if options.all else _MOST_ROWS
    for segment in plan.segments:
        _print_segment(segment, marks, most)
    print()
    _print_ledger(plan.sources, most)
    for cap in plan.caps:
        if cap.position is not None:
            follows = {"stop": "the run stops there", "renormalise": "others are read on", "repeat": "it is read on"}
            passes = counted(cap.max_passes, "pass")
            print(f"cap: {name_of(cap.source)} has had its {passes} at position {marks.of(cap.position)}:")
            print(f"     {follows[cap.follows or 'stop']}")
    if plan.num_samples is not None:
        early = "" if opened.lock.cut_short is None else ", before the stages end"
        print(f"end: position {marks.of(plan.num_samples)}{early}")
    return 0 if opened.lock.cut_short is None else 1


class _Marks:
    """Positions in words: with step and date where these are known."""

    def __init__(self, options: Options, lock: RunLock) -> None:
        self._lock = lock
        self._sizes: BatchSizeSchedule | None = options.batch_sizes(lock)
        self._pace: Pace | None = None
        if options.tokens_per_second is None and options.start is not None:
            message = "expected --tokens-per-second beside --start, found none"
            raise ConfigError(message)
        if options.tokens_per_second is not None:
            if not options.tokens_per_second > 0:
                message = f"expected --tokens-per-second above 0, found {options.tokens_per_second}"
                raise ConfigError(message)
            self._pace = Pace(tokens_per_second=options.tokens_per_second, start=options.start, begin=lock.consumed)

    @property
    def say_more(self) -> bool:
        """Whether more than its number is known of a position."""
        return self._sizes is not None or self._pace is not None

    def of(self, position: int) -> str:
        """Returns a position in words."""
        known = []
        if self._sizes is not None:
            known.append(f"step {self._sizes.step_of_position(position):,}")
        if self._pace is not None:
            known.append(self._pace.words(self._lock, position))
        return f"{position:,}" + (f" ({', '.join(known)})" if known else "")

    def members(self, position: int | None) -> dict[str, Any]:
        """Returns what is known of a position beside its number, for JSON."""
        if position is None:
            return {}
        known: dict[str, Any] = {}
        if self._sizes is not None:
            known["step"] = self._sizes.step_of_position(position)
        if self._pace is not None:
            known["seconds"] = self._pace.seconds_to(self._lock, position)
            if self._pace.start is not None:
                known["date"] = self._pace.date_of(self._lock, position).isoformat()
        return known


def _described(plan: RunPlan, marks: _Marks) -> dict[str, Any]:
    told = plan.as_json()
    for segment in told["segments"]:
        segment.update(marks.members(segment["start"]))
    for cap in told["caps"]:
        cap.update(marks.members(cap["position"]))
    if plan.num_samples is not None:
        told["end"] = {"position": plan.num_samples, **marks.members(plan.num_samples)}
    return told


def _print_segment(segment: PlannedSegment, marks: _Marks, most: int | None) -> None:
    size = "no end" if segment.num_samples is None else counted(segment.num_samples, "sample")
    tokens = "" if segment.num_tokens is None else f", {short(segment.num_tokens)} tokens in all"
    print(f"\n{stage_of(segment.stage)} from position {marks.of(segment.start)}")
    print(f"  {size} of {segment.sequence_length:,} tokens{tokens}")
    print_row(_HEADINGS, _WIDTHS)
    shown, rest = largest(segment.readings, lambda reading: reading.weight, most)
    for reading in shown:
        print_row(tuple(_reading(reading)), _WIDTHS)
    if rest:
        samples = sum(reading.num_samples or 0 for reading in rest)
        share = sum(reading.weight for reading in rest) / rest[0].weights
        many = (f"{len(rest):,} others", f"{share:.3%}")
        print_row((*many, "" if segment.num_samples is None else short(samples), "", "", ""), _WIDTHS)
    if marks.say_more:
        for reading in shown:
            if reading.pass_ends:
                print(f"  {name_of(reading.source, width=_NAME)}: a pass ends at {marks.of(reading.pass_ends[0])}")


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


def _print_ledger(sources: Sequence[PlannedSource], most: int | None) -> None:
    print_row(_LEDGER_HEADINGS, _LEDGER_WIDTHS)
    shown, rest = largest(sources, lambda source: source.seen_tokens, most)
    for source in shown:
        counts = (source.offered_tokens, source.seen_tokens, source.unseen_tokens, source.uncovered_tokens)
        print_row((source.name, f"{source.num_passes:,}", *map(short, counts)), _LEDGER_WIDTHS)
    if rest:
        sums = (
            sum(source.offered_tokens for source in rest),
            sum(source.seen_tokens for source in rest),
            sum(source.unseen_tokens for source in rest),
            sum(source.uncovered_tokens for source in rest),
        )
        print_row((f"{len(rest):,} others", "", *map(short, sums)), _LEDGER_WIDTHS)
