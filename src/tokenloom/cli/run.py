"""Commands that write, lock, amend, check, identify, plan, compare and stream a run, and account for its tokens."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Annotated, Any, ClassVar

from tokenloom.cli.options import JsonOption, Position, Written, arguments_of, named_values, refuse, refuse_usage
from tokenloom.cli.output import Answer, facts_lines, members, say, table
from tokenloom.cli.run_options import BatchSizes, RunPath, difference, lock_at, stage_of
from tokenloom.loading.read_ahead import loader_statistics
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.run_arguments import TakenArguments, read_arguments, take_arguments
from tokenloom.numbers import number_or_none, quoted
from tokenloom.progress import task
from tokenloom.rendering.card import MOST_ROWS
from tokenloom.rendering.progress_words import duration
from tokenloom.rendering.words import LEFT, NEVER, WITHOUT, counted, ledger_columns, name_of, short
from tokenloom.run.amend import Amendment, amend_run, draft_text, weighted_entries
from tokenloom.run.audit.ledger import LedgerRow, RunLedger
from tokenloom.run.audit.source_origins import records_may_be_elsewhere
from tokenloom.run.changes import RunDifferences, differences, lock_changes
from tokenloom.run.digest import order_digest, run_identity
from tokenloom.run.lock import LockedSegment, RunLock, lock_path, read_lock, read_lock_if_there
from tokenloom.run.locking import DROPS, LockedRun, lock_run
from tokenloom.run.plan import PlannedReading, RunPlan, closed_at
from tokenloom.run.run import Run
from tokenloom.run.sources import check_sources
from tokenloom.run.toml_file import count_of, share_of, weight_of
from tokenloom.setting_types import Count, Number
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending

_NEW = ("prefix", "num_tokens", "since")
_DEFAULT_LENGTH = 4096
_MOST_NAMED = 4
_RUN_GROUP = "settings of the run (they override --args-file)"
_STAGE = "a new stage, which replaces the rest of the current stage"


def _count(text: str) -> int:
    return count_of(text.strip())


def _share(text: str) -> Fraction:
    stripped = text.strip()
    return share_of(stripped if number_or_none(stripped, quoted(text)) is None else Decimal(stripped))


def _weights(text: str) -> tuple[tuple[str, Fraction], ...]:
    """Parses weights by source, such as `web=5,code=5`."""
    weights = []
    for name, weight, where in named_values(text, "source", "weight", hint="write weights such as web=5,code=5"):
        if number_or_none(weight, where) is None:
            refuse(f"{where}: the weight must be a number")
        weights.append((name, weight_of(Decimal(weight.strip()))))
    return tuple(weights)


def _named_data(text: str) -> tuple[str, str]:
    name, equals, data = (part.strip() for part in text.partition("="))
    if not (equals and name and data):
        refuse(f"must be NAME=DATA such as books='data/books/*', got {quoted(text)}")
    return name, data


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        refuse(f"must be a date such as 2026-12-01 or 2026-12-01T08:00, got {quoted(text)}")


@dataclass(frozen=True, kw_only=True)
class InitOptions(JsonOption):
    """Write a run.toml with comments, from folders (one source each), from a blend in Megatron's syntax, or from the
    arguments of a Megatron run. By default, the weights are token counts, and the run is one pass.

    Attributes:
        folders: folders, globs or prefixes, one source each.
        data_path: prefixes, globs or folders, optionally with a weight before each.
        args_file: file with the arguments of a Megatron run: a script, a list of arguments, or YAML.
        output: output file.
        overwrite: replace an existing file.
        sequence_length: tokens per sample (default 4096).
        tokens: total tokens of the run, such as 900B.
        samples: total samples of the run.
        seed: seed of the shuffle (default 1234).
        tokenizer: path of the tokenizer of the data.
        holdout: share of each source to hold out for validation, such as 0.1%.
        json: print one JSON object: path, data (a list), others (arguments of --args-file that are not about data), and
            `not_taken`: a list with one object per ignored argument about data: argument, reason.
    """

    EITHER: ClassVar[Any] = (("tokens", "samples"), ("folders", "data_path"))
    ONE_OF: ClassVar[Any] = {"FOLDER…, --data-path or --args-file": ("folders", "data_path", "args_file")}

    folders: Annotated[tuple[str, ...], Written(metavar="FOLDER", is_positional=True)] = ()
    data_path: Annotated[tuple[str, ...], Written(metavar="ENTRY")] = ()
    args_file: Annotated[str | None, Written(metavar="FILE")] = None
    output: Annotated[str, Written(names=("-o", "--output"), metavar="FILE")] = "run.toml"
    overwrite: Annotated[bool, Written(names=("--overwrite", "--force"))] = False
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_RUN_GROUP)] = None
    tokens: Annotated[int | None, Written(parse=_count, group=_RUN_GROUP)] = None
    samples: Annotated[int | None, Written(parse=_count, group=_RUN_GROUP)] = None
    seed: Annotated[Number | None, Written(group=_RUN_GROUP)] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_RUN_GROUP)] = None
    holdout: Annotated[Fraction | None, Written(metavar="SHARE", parse=_share, group=_RUN_GROUP)] = None


def run_init(options: InitOptions) -> Answer:
    taken = TakenArguments() if options.args_file is None else take_arguments(read_arguments(options.args_file))
    entries = options.data_path or options.folders or taken.entries
    if not entries:
        refuse(f"`{options.args_file}` has no `--data-path`", hint="pass --data-path, or add it to the file")
    data, weights = weighted_entries(entries)
    is_sized = options.tokens is not None or options.samples is not None
    others = {
        "sequence_length": options.sequence_length or taken.sequence_length or _DEFAULT_LENGTH,
        "samples": options.samples if is_sized else taken.samples,
        "seed": next((seed for seed in (options.seed, taken.seed) if seed is not None), 1234),
        "tokenizer": options.tokenizer or taken.tokenizer,
    }
    given = {"data": data, "weights": weights, "settings": taken.settings, **others}
    text = draft_text(**arguments_of(options, draft_text, path=options.output, **given))
    if os.path.lexists(options.output) and not options.overwrite:
        refuse(f"`{options.output}` exists", hint="pass another name with --output, or --overwrite to replace it")
    make_folder_of(options.output)
    with open_pending(options.output) as file:
        file.write(text.encode())
    if not options.json:
        for name, reason in taken.not_taken:
            say(f"ignored: --{name}: {reason}")
        if taken.others:
            say(f"ignored, not about data: {', '.join(f'--{name}' for name in taken.others)}")
    not_taken = [{"argument": name, "reason": reason} for name, reason in taken.not_taken]
    record = {"path": options.output, "data": data, "not_taken": not_taken, "others": taken.others}
    return Answer(record, f"wrote {options.output}: review it, then run `tokenloom run lock {options.output}`")


@dataclass(frozen=True, kw_only=True)
class LockOptions(RunPath, BatchSizes):
    """Write run.lock, which lists the exact data that the run reads, beside run.toml. Reads only headers and manifests.
    Prints the changes and the first position whose sample changes; writes nothing if that position is consumed.

    Attributes:
        consumed_samples: number of samples that training has consumed (default: as in run.lock).
        drop: with `denials`, accept that run.toml lacks earlier denials, or starts them later; with `consumed`, accept
            fewer consumed samples than in run.lock, because training goes back to an earlier checkpoint.
        dry_run: print the changes, write nothing.
        json: print one JSON object: path, written, consumed, digest, num_samples, num_sources, num_pairs, num_tokens,
            stopped, cut_short; `no_document`: records without a document; `unknown_pairs`: prefixes without origins;
            `dropped`: documents; `segments`, `exhausted`: lists of objects; `changes`, `moved`: objects or null.
    """

    consumed_samples: Position | None = None
    drop: Annotated[tuple[str, ...], Written(choices=DROPS, is_repeated=True)] = ()
    dry_run: bool = False


def run_lock(options: LockOptions) -> Answer:
    path = lock_path(options.run_path)
    consumed = options.position_of(options.consumed_samples, read_lock_if_there(path))
    locked = lock_run(options.run_path, consumed=consumed, drop=options.drop, write=not options.dry_run)
    return _answer(locked, {"path": path, "written": not options.dry_run})


def _answer(
    locked: LockedRun, head: dict[str, Any], *, position: int | None = None, above: Sequence[str] = ()
) -> Answer:
    """Formats the result of locking; the exit status is 1 if the run ends before its stages do."""
    lock, changes = locked.lock, None if locked.old is None else lock_changes(locked.old, locked.lock)
    kept = lock.consumed if position is None else position
    pairs = [pair for each in lock.sources for pair in each.pairs]
    change_facts: dict[str, Any] = {}
    if changes is not None:
        change_facts = {
            "new_pairs": [
                {"source": data.name, **members(pair, *_NEW)} for data in changes.new_data for pair in data.pairs
            ],
            "new_sources": changes.new_sources,
            "new_segments": [_segment(lock, segment) for segment in changes.new_segments],
            "settings": changes.others,
            **members(changes, "gone", "num_denied"),
        }
    record = {
        **head,
        "digest": order_digest(lock, kept),
        "num_sources": len(lock.sources),
        "num_pairs": len(pairs),
        "num_tokens": sum(pair.num_tokens for pair in pairs),
        "segments": [_segment(lock, segment) for segment in lock.segments],
        "changes": change_facts or None,
        "stopped": locked.is_stopped,
        "no_document": locked.empty_records,
        **members(lock, "consumed", "num_samples", "cut_short"),
        **members(locked, "exhausted", "unknown_pairs", "dropped", "moved"),
    }
    if lock.early_end is not None:
        say(f"warning: {lock.early_end}")

    def lines() -> Iterator[str]:
        yield from above
        data = f"{counted(len(lock.sources), 'source')}, {counted(len(pairs), 'pair')}"
        samples = "unlimited samples" if lock.num_samples is None else counted(lock.num_samples, "sample")
        what = f"{'wrote' if head['written'] else 'would write'} {head['path']}"
        yield f"{what}: {data}, {short(record['num_tokens'])} tokens; {samples}"
        if locked.unknown_pairs:
            say(records_may_be_elsewhere(locked.unknown_pairs))
        segments = lock.segments if changes is None else changes.new_segments
        facts: dict[str, Any] = {
            "exhausted": list(map(members, locked.exhausted)),
            "denied records without a document": locked.empty_records,
            "dropped": locked.dropped,
            **change_facts,
        }
        name = "segments" if changes is None else "new_segments"
        facts[name] = [_segment(lock, each, as_text=True) for each in segments]
        if changes is not None and locked.old is not None:
            facts["consumed before"] = locked.old.consumed if lock.consumed < locked.old.consumed else None
            facts["moved"] = locked.moved and members(locked.moved)
        title = "" if changes is None else "changes"
        yield from facts_lines(title, {name: value for name, value in facts.items() if value})
        if changes is not None:
            yield from () if changes or locked.dropped else ("  nothing changed",)
            yield from () if locked.moved else ("  no position moved",)
            if kept:
                which = "consumed" if position is None else "earlier"
                yield f"  {kept:,} {which} positions are unchanged: digest {record['digest'][:16]}"

    return Answer(record, lines(), 0 if lock.early_end is None else 1)


def _segment(lock: RunLock, segment: LockedSegment, *, as_text: bool = False) -> dict[str, Any]:
    """Returns the values of a segment for display; `weights` is {source: weight}, or a text if `as_text`."""
    weights: Any = {lock.sources[source].name: weight for source, weight in segment.weights}
    if as_text:
        total, ranked = sum(weights.values()), sorted(segment.weights, key=lambda each: (-each[1], each[0]))
        named = [(name_of(lock.sources[source].name), weight) for source, weight in ranked[:_MOST_NAMED]]
        if others := ranked[_MOST_NAMED:]:
            named.append((f"{len(others):,} others", sum(weight for _, weight in others)))
        weights = ", ".join(f"{name} {weight / total:.3%}".replace(".000%", "%") for name, weight in named)
    return {**members(segment, "stage", "start", "num_samples", "sequence_length"), "weights": weights}


@dataclass(frozen=True, kw_only=True)
class AmendOptions(RunPath, BatchSizes):
    """Change a run, starting at a position that training has not consumed: edit run.toml and write run.lock. Prints the
    edit and its effects. Both files change, or neither. A change that would move an earlier sample is an error.

    Attributes:
        at_position: the first position that changes; positions count from 0.
        weights: weights of the stage's sources, such as web=5,code=5.
        stage_name: name of the new stage (default: "from" and the position).
        sequence_length: tokens per sample of the stage.
        tokens: total tokens of the stage, such as 50B.
        samples: total samples of the stage.
        add_source: a new source, such as books='data/books/*'; may be repeated.
        deny: a file that lists documents to deny, such as web:12345, one per line.
        grow: add each pair that matches the `data` of a source in run.toml and is not in run.lock.
        dry_run: print the changes, write nothing.
        json: print one JSON object: path, written, position, diff, and the keys of `run lock`.
    """

    EITHER: ClassVar[Any] = (("tokens", "samples"),)
    ONE_OF: ClassVar[Any] = {"--at-step or --at-position": ("at_position",)}

    at_position: Position | None = None
    weights: Annotated[Sequence[tuple[str, Fraction]], Written(metavar="NAME=W,…", parse=_weights, group=_STAGE)] = ()
    stage_name: Annotated[str | None, Written(metavar="NAME", group=_STAGE)] = None
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_STAGE)] = None
    tokens: Annotated[int | None, Written(parse=_count, group=_STAGE)] = None
    samples: Annotated[int | None, Written(parse=_count, group=_STAGE)] = None
    add_source: Annotated[
        tuple[tuple[str, str], ...], Written(metavar="NAME=DATA", parse=_named_data, is_repeated=True, group="data")
    ] = ()
    deny: Annotated[str | None, Written(metavar="FILE", group="data")] = None
    grow: Annotated[bool, Written(group="data")] = False
    dry_run: bool = False


def run_amend(options: AmendOptions) -> Answer:
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.at_position, lock)
    assert position is not None  # required by the options
    sources = dict(options.add_source)
    if len(sources) < len(options.add_source):
        refuse("--add-source has the same source twice", hint="pass the source once; list its other data in run.toml")
    others = {"position": position, "sources": sources, "denied": options.deny, "grows": options.grow}
    amendment = Amendment(**arguments_of(options, Amendment, **others))
    amended = amend_run(options.run_path, amendment, write=not options.dry_run)
    diff = difference(options.run_path, amended, after=f"from position {position}")
    head = {"path": lock_path(options.run_path), "written": not options.dry_run, "position": position, "diff": diff}
    return _answer(amended.locked, head, position=position, above=[*diff, *([""] if diff else [])])


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RunPath):
    """Compare the data of a run with run.lock: sizes, counts, the start of each index, and the checksums in manifests.
    The exit status is 1 if anything differs.

    Attributes:
        full: also read all data and compare their checksums.
        json: print one JSON object: path, run, num_pairs, full, and `problems`: a list with one object per problem:
            source, path, message, is_unknown.
    """

    full: bool = False


def run_check(options: CheckOptions) -> Answer:
    opened = Run.open(options.run_path)
    num_pairs = sum(len(source.pairs) for source in opened.lock.sources)
    problems = check_sources(opened.lock, full=options.full)
    num_wrong = sum(not problem.is_unknown for problem in problems)
    record = {"path": options.run_path, "run": opened.identity, "num_pairs": num_pairs, "full": options.full}
    texts = [f"{'unknown' if problem.is_unknown else 'problem'}: {problem.message}" for problem in problems]
    lines = facts_lines(counted(num_wrong, "problem") if num_wrong else "ok", {**record, "problems": texts})
    return Answer({**record, "problems": problems}, lines, 1 if num_wrong else 0)


@dataclass(frozen=True, kw_only=True)
class IdOptions(RunPath, BatchSizes):
    """Print a run's ID, a SHA-256 of the seed and the initial data; amendments do not change the ID. Loaders store
    the ID as `run` in their state. Also print a digest of the sample order before a position. RUN may be a lock file.

    Attributes:
        position: end of the digest, exclusive (default: number of consumed samples in run.lock; if 0, print no digest).
        json: print one JSON object: path, run, position, digest and num_samples.
    """

    position: Position | None = None


def run_id(options: IdOptions) -> Answer:
    lock = lock_at(options.run_path)
    position = options.position_of(options.position, lock)
    if position is None:
        position = lock.consumed or None
    digest = None if position is None else order_digest(lock, position)
    record = {"path": options.run_path, "run": run_identity(lock), "position": position, "digest": digest}
    lines = [f"{record['run']}  {options.run_path}"]
    if position is not None:
        lines.append(f"{digest}  order before position {position:,}")
    return Answer({**record, "num_samples": lock.num_samples}, lines)


@dataclass(frozen=True, kw_only=True)
class DigestOptions(RunPath, BatchSizes):
    """Print a SHA-256 of all that determines the samples before a position; equal digests mean equal samples.

    Attributes:
        position: end of the digest, exclusive (default: consumed samples in run.lock, or if none, all of the run).
        json: print one JSON object: position, digest and run.
    """

    position: Position | None = None


def run_digest(options: DigestOptions) -> Answer:
    opened = Run.open(options.run_path)
    position = options.position_of(options.position, opened.lock)
    if position is None:
        position = opened.lock.consumed or opened.num_samples or 0
    digest = opened.digest(position)
    record = {"position": position, "digest": digest, "run": opened.identity}
    return Answer(record, f"{digest}  {options.run_path} before position {position:,}")


_EXHAUSTED = {
    "stop": "the run stops there",
    "renormalise": "the run continues with the other sources",
    "repeat": "the source is repeated",
}
"""{`on_exhausted`: behavior once a source has been read `max_passes` times}."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunPath, BatchSizes):
    """Print what a run will read, computed from run.lock without reading data: the samples, tokens and passes of each
    source per stage, where passes end, where a source reaches its maximum number of passes, and which tokens are never
    read. With --tokens-per-second, also print times; with --start, also dates.

    Attributes:
        tokens_per_second: training throughput over all ranks.
        start: date and time at which training reads the first unconsumed position (default: print no dates).
        json: print one JSON object: run, cut_short, num_samples, num_tokens; `segments`, `sources`, `caps`: lists of
            objects; `end`: an object. Segments, caps and `end` have step, seconds and date if the options give these.
    """

    tokens_per_second: Annotated[float | None, Written(metavar="N", group="dates")] = None
    start: Annotated[datetime | None, Written(metavar="DATE", parse=_date, group="dates")] = None

    def __post_init__(self) -> None:
        if self.tokens_per_second is None and self.start is not None:
            refuse("--start needs --tokens-per-second")
        if self.tokens_per_second is not None and not self.tokens_per_second > 0:
            refuse(f"--tokens-per-second must be above 0, got {self.tokens_per_second}")


def run_plan(options: PlanOptions) -> Answer:
    opened = Run.open(options.run_path)
    plan, schedule = opened.plan(), _Schedule(options, opened.lock)
    record = {"run": opened.identity, "cut_short": opened.lock.cut_short, **asdict(plan)}
    for each in record["segments"]:
        each.update(schedule.facts(each["start"]))
    for each in record["caps"]:
        each.update(schedule.facts(each["position"]))
    if plan.num_samples is not None:
        record["end"] = {"position": plan.num_samples, **schedule.facts(plan.num_samples)}
    return Answer(record, _plan_lines(options, opened, plan, schedule), 0 if opened.lock.cut_short is None else 1)


def _plan_lines(options: PlanOptions, opened: Run, plan: RunPlan, schedule: _Schedule) -> Iterator[str]:
    samples = "unlimited samples" if plan.num_samples is None else counted(plan.num_samples, "sample")
    tokens = "" if plan.num_tokens is None else f", {short(plan.num_tokens)} tokens"
    yield f"{options.run_path}: {counted(len(plan.sources), 'source')}, {samples}{tokens}"
    yield f"run {opened.identity}"
    for segment in plan.segments:
        size = "unlimited samples" if segment.num_samples is None else counted(segment.num_samples, "sample")
        yield f"\n{stage_of(segment.stage)} from position {schedule.text(segment.start)}"
        yield f"  {size} of {segment.sequence_length:,} tokens"
        readings = sorted(segment.readings, key=lambda reading: -reading.weight)
        columns = ("source", "share", "samples", "tokens", "passes", "pass ends at")
        yield from table(columns, [_reading(reading) for reading in readings], most=MOST_ROWS)
        for reading in readings[:MOST_ROWS]:
            if reading.pass_ends and schedule.facts(reading.pass_ends[0]):
                yield f"  {name_of(reading.source)}: a pass ends at {schedule.text(reading.pass_ends[0])}"
    sources = sorted(plan.facts()["sources"], key=lambda source: -source["seen"])
    yield from facts_lines("", {"tokens of sources": sources})
    for cap in plan.caps:
        if cap.position is not None:
            passes = counted(cap.max_passes, "pass")
            yield f"cap: {name_of(cap.source)} reaches {passes} at position {schedule.text(cap.position)}:"
            yield f"     {_EXHAUSTED[cap.follows or 'stop']}"
    if plan.num_samples is not None:
        early = "" if opened.lock.cut_short is None else ", before the stages end"
        yield f"end: position {schedule.text(plan.num_samples)}{early}"


class _Schedule:
    """A map from positions to steps, times and dates; at time 0, training reads the first unconsumed position."""

    def __init__(self, options: PlanOptions, lock: RunLock) -> None:
        self._lock, self._sizes = lock, options.batch_sizes(lock)
        self._speed, self._start = options.tokens_per_second, options.start

    def facts(self, position: int | None) -> dict[str, Any]:
        """Returns `step`, `seconds` and `date` of a position; omits the values that the options do not determine."""
        facts: dict[str, Any] = {}
        if position is not None and self._sizes is not None:
            facts["step"] = self._sizes.step_of_position(position)
        if position is not None and self._speed is not None:
            parts = [closed_at(self._lock, each).segments for each in (position, self._lock.consumed)]
            until, consumed = (sum((each.num_samples or 0) * each.sequence_length for each in part) for part in parts)
            facts["seconds"] = (until - consumed) / self._speed
            if self._start is not None:
                try:
                    facts["date"] = self._start + timedelta(seconds=facts["seconds"])
                except OverflowError:
                    hint = "pass --tokens-per-second as tokens per second over all ranks"
                    refuse(f"the date of position {position} is after the year 9999", hint=hint)
        return facts

    def text(self, position: int) -> str:
        """Formats a position with its step and date; without a date, with the time until training reads it."""
        facts = self.facts(position)
        words = [f"step {facts['step']:,}"] if "step" in facts else []
        if "date" in facts:
            words.append(f"{facts['date']:%Y-%m-%d %H:%M}")
        elif (seconds := facts.get("seconds", 0)) > 0:
            words.append(f"after {duration(seconds)}")
        return f"{position:,}" + (f" ({', '.join(words)})" if words else "")


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
    """Account for the tokens of a run before a step. For each stage and source, count the tokens that are read with
    loss, read without loss (by reason), never read, or left for later. Then print what the samples contain. The exit
    status is 1 if the counts do not add up. Data is read only where it decides which tokens have loss.

    Attributes:
        until_position: count only positions before N (default: the whole run).
        json: print one JSON object: run, position, balance; `total`: an object of counts; `sources`: a list with one
            such object per source; `stages`: a list with one object per stage, with `total` and `sources` of the stage.
    """

    until_position: Position | None = None


def ledger(options: LedgerOptions) -> Answer:
    opened = Run.open(options.run_path)
    position = options.position_of(options.until_position, opened.lock)
    if position is None and opened.num_samples is None:
        refuse_usage("the run is endless: pass --until-step or --until-position")
    counts = opened.ledger(until=position)
    record = {"run": opened.identity, **counts.as_json()}
    return Answer(record, _ledger_lines(options.run_path, counts), 1 if counts.balance else 0)


def _ledger_lines(path: str, ledger: RunLedger) -> Iterator[str]:
    yield f"{path}: {counted(ledger.position, 'sample')} of {counted(len(ledger.sources), 'source')}; tokens:"
    for stage in ledger.stages:
        yield f"\n{stage_of(stage.stage)}, positions {stage.start:,} to {stage.stop:,}"
        yield from _row_lines(stage.sources)
    yield "\nall stages"
    yield from _row_lines(ledger.sources)
    total = ledger.total.as_json()
    facts = {name: {each: count for each, count in total[name].items() if count} for name in ("tokens", "slots")}
    yield from facts_lines("total", facts)
    yield f"balance {ledger.balance}"


def _row_lines(rows: Sequence[tuple[str, LedgerRow]]) -> Iterator[str]:
    ranked = sorted(rows, key=lambda each: -each[1].seen)
    columns = ("source", "samples", "in", "with loss", "without", "never", "left")
    cells = [(name, row.counts.samples, *ledger_columns(row.as_json()["tokens"])) for name, row in ranked]
    yield from table(columns, cells, most=MOST_ROWS)
    for name, row in ranked[:MOST_ROWS]:
        tokens = row.as_json()["tokens"]
        if words := [f"{words} {tokens[key]:,}" for words, key in (*WITHOUT, *NEVER, *LEFT) if tokens[key]]:
            yield f"  {name_of(name)}: {'; '.join(words)}"


@dataclass(frozen=True, kw_only=True)
class DiffOptions(JsonOption):
    """Compare two runs by their locks. Print the first position that differs, the settings that differ, and for each
    source the tokens that both runs read, at any position. Sources are the same if their checksums are equal, even
    under other names. The exit status is 1 if any position differs.

    Attributes:
        before: a run.toml, or a lock file such as an older run.lock.
        after: a run.toml or a lock file to compare with A.
        until_position: compare only positions before N (default: all).
        json: print one JSON object: position, before, after, reason, runs, ends, stop; `settings`, `sources`: lists.
    """

    before: Annotated[str, Written(metavar="A", is_positional=True)]
    after: Annotated[str, Written(metavar="B", is_positional=True)]
    until_position: Number | None = None


def run_diff(options: DiffOptions) -> Answer:
    found = differences(lock_at(options.before), lock_at(options.after), until=options.until_position)
    return Answer(asdict(found), _diff_lines(found), 0 if found.are_equal else 1)


def _diff_lines(found: RunDifferences) -> Iterator[str]:
    facts = asdict(found)
    sources = sorted(facts["sources"], key=lambda source: -source["data_before"] - source["data_after"])
    shared = [{**source, "names_after": ", ".join(source["names_after"])} for source in sources]
    yield from facts_lines("before: A, after: B", {**facts, "sources": shared})
    if found.position is not None:
        yield f"the first {found.position:,} positions are the same"
    elif found.stop is None or found.stop in found.ends:
        yield "all positions are the same"
    else:
        yield f"positions before {found.stop:,} are the same"


@dataclass(frozen=True, kw_only=True)
class RunStreamOptions(RunPath, BatchSizes):
    """Read batches of a run, starting at a position. Print the throughput, the time spent waiting for data and, for
    data in object storage, the bytes fetched.

    Attributes:
        position: the first position to read (default 0).
        micro_batch_size: samples per batch.
        batches: maximum number of batches.
        holdout: read the held-out samples of the run instead of its training samples.
        json: print one JSON object: position, num_batches, num_samples, num_tokens, seconds, wait_seconds,
            longest_wait_seconds, and `storage`: an object of counts by URL, empty for local data.
    """

    position: Position | None = None
    micro_batch_size: Annotated[Count, Written(metavar="B")] = 8
    batches: Count = 1000
    holdout: bool = False


def run_stream(options: RunStreamOptions) -> Answer:
    opened = Run.open(options.run_path)
    start = options.position_of(options.position, opened.lock) or 0
    dataset = opened.holdout() if options.holdout else opened.dataset()
    size = options.micro_batch_size
    if start + size > len(dataset):
        left = max(0, len(dataset) - start)
        refuse(f"from position {start} on, {left} samples are left, fewer than a batch of {size}")
    return read_batches(dataset, start, size, options.batches)


def read_batches(dataset: Any, start: int, size: int, most: int | None) -> Answer:
    """Reads at most `most` batches of `size` samples, starting at position `start`; returns throughput and waits."""
    loader = ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), start, size, 0, 1))
    num_batches = num_tokens = 0
    started = time.perf_counter()
    with task("stream", unit="batches", total=most) as advance:
        for batch in islice(loader, most):
            num_batches += 1
            num_tokens += math.prod(batch["tokens"].shape)
            advance.tell(num_batches, total=most, num_tokens=num_tokens)
    seconds, wait, statistics = time.perf_counter() - started, loader.wait, loader_statistics(loader)
    record: dict[str, Any] = {"position": start, "num_batches": num_batches, "num_samples": num_batches * size}
    record |= {"num_tokens": num_tokens, "seconds": seconds}
    record |= {"wait_seconds": wait.total_seconds, "longest_wait_seconds": wait.longest_seconds}
    storage = {
        source: {name if name == "wait_seconds" else f"num_{name}": value for name, value in members(entry).items()}
        for source, entry in statistics.items()
    }
    rows = [{"source": source, **each, "ratio": statistics[source].amplification} for source, each in storage.items()]
    speed = f"{num_batches / seconds:,.1f} batches/s, {num_tokens / seconds:,.0f} tokens/s"
    return Answer({**record, "storage": storage}, facts_lines(speed, {**record, "storage": rows}))
