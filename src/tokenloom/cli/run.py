"""`tokenloom run`: a run as two files, written, locked, changed, checked and named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from tokenloom.cli.options import Either, JsonOption, OneOf, Position, Written, arguments_of
from tokenloom.cli.output import Answer, facts_lines, members, say
from tokenloom.cli.run_options import BatchSizes, RunPath, difference, lock_at
from tokenloom.cli.values import named_data, refuse, share, token_count, weights
from tokenloom.errors import ConfigError
from tokenloom.megatron.run_arguments import TakenArguments, read_arguments, take_arguments
from tokenloom.rendering.words import counted, name_of, short
from tokenloom.run.amend import Amendment, RunDraft, amend_run, draft_text, weighted_entries
from tokenloom.run.audit.source_origins import records_may_be_elsewhere
from tokenloom.run.changes import lock_changes
from tokenloom.run.digest import order_digest, run_identity
from tokenloom.run.lock import LockedSegment, RunLock, lock_path, read_lock, read_lock_if_there
from tokenloom.run.locking import DROPS, LockedRun, lock_run
from tokenloom.run.run import Run
from tokenloom.run.sources import check_sources
from tokenloom.setting_types import Count, Number
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending

_DEFAULT_LENGTH = 4096
_SAID = "what the run says; before what an arguments file says"

_MOST_NAMED = 4
_STAGE = "a new stage, in place of what is left of the one that it cuts short"
_DATA = "data"


@dataclass(frozen=True, kw_only=True)
class InitOptions(JsonOption):
    """Write a run.toml with comments: from a blend as Megatron has it, from the arguments of a Megatron run, or from
    folders, each of which becomes a source. Data without weights are read in proportion to their tokens: once, if no
    size is given.

    Attributes:
        folders: folders, globs or prefixes, a source each.
        data_path: prefixes, globs or folders; or a weight before each.
        args_file: arguments of a Megatron run: a script, a list of arguments, or YAML.
        output: file to write.
        overwrite: replace a file that is there.
        sequence_length: tokens per sample (default 4096).
        tokens: tokens of the run, such as 900B.
        samples: samples of the run.
        seed: seed of the order (default 1234).
        tokenizer: the tokenizer that made the data.
        holdout: share of each to hold out, such as "0.1%".
        json: print one JSON object: path, data, not_taken and others.
    """

    EITHER: ClassVar[Either] = (("tokens", "samples"), ("folders", "data_path"))
    ONE_OF: ClassVar[OneOf] = {"--data-path, --args-file, or folders": ("folders", "data_path", "args_file")}

    folders: Annotated[tuple[str, ...], Written(metavar="FOLDER", is_positional=True)] = ()
    data_path: Annotated[tuple[str, ...], Written(metavar="ENTRY")] = ()
    args_file: Annotated[str | None, Written(metavar="FILE")] = None
    output: Annotated[str, Written(names=("-o", "--output"), metavar="FILE")] = "run.toml"
    overwrite: Annotated[bool, Written(names=("--overwrite", "--force"))] = False
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_SAID)] = None
    tokens: Annotated[int | None, Written(parse=token_count, group=_SAID)] = None
    samples: Annotated[int | None, Written(parse=token_count, group=_SAID)] = None
    seed: Annotated[Number | None, Written(group=_SAID)] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_SAID)] = None
    holdout: Annotated[Fraction | None, Written(metavar="SHARE", parse=share, group=_SAID)] = None


def run_init(options: InitOptions) -> Answer:
    taken = TakenArguments() if options.args_file is None else take_arguments(read_arguments(options.args_file))
    entries = options.data_path or options.folders or taken.entries
    if not entries:
        refuse(f"`{options.args_file}`: expected `--data-path`, found none", hint="give `--data-path` yourself")
    data, weights = weighted_entries(entries)
    is_sized = options.tokens is not None or options.samples is not None
    others = {
        "sequence_length": options.sequence_length or taken.sequence_length or _DEFAULT_LENGTH,
        "samples": options.samples if is_sized else taken.samples,
        "seed": next((seed for seed in (options.seed, taken.seed) if seed is not None), 1234),
        "tokenizer": options.tokenizer or taken.tokenizer,
    }
    given = {"data": data, "weights": weights, "settings": taken.settings, **others}
    text = draft_text(RunDraft(**arguments_of(options, RunDraft, **given)), path=options.output)
    if os.path.lexists(options.output) and not options.overwrite:
        message = f"expected no file `{options.output}`, found one"
        raise ConfigError(message, hint="give another name with --output, or --overwrite to replace it")
    make_folder_of(options.output)
    with open_pending(options.output) as file:
        file.write(text.encode())
    if not options.json:
        for name, reason in taken.not_taken:
            say(f"not taken over: --{name}: {reason}")
        if taken.others:
            say(f"not about data: {', '.join(f'--{name}' for name in taken.others)}")
    not_taken = [{"argument": name, "reason": reason} for name, reason in taken.not_taken]
    return Answer(
        {"path": options.output, "data": data, "not_taken": not_taken, "others": taken.others},
        f"wrote {options.output}: look at it, then run `tokenloom run lock {options.output}`",
    )


@dataclass(frozen=True, kw_only=True)
class LockOptions(RunPath, BatchSizes):
    """Write run.lock beside run.toml: which data the run reads, from headers and manifests alone. Says what has
    changed, and the first position that holds another sample than before; what was consumed cannot, or nothing is
    written.

    Attributes:
        consumed_samples: how far training has come, as samples from 0 on.
        drop: let go of denials that run.toml has no more; or of what was consumed, after going back to an earlier
            checkpoint.
        dry_run: only say what would change.
        json: print one JSON object: path, written, consumed, digest, num_samples, num_sources, num_pairs, num_tokens,
            segments, changes, exhausted, stopped, cut_short, no_document (records that gave none), unknown_pairs
            (prefixes that do not know their input), dropped and moved.
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
    """Returns what locking came to, and that nothing changed before a position, or of what was consumed.

    The status is 1 if the run ends before its stages do, which is said.
    """
    lock, changes = locked.lock, None if locked.old is None else lock_changes(locked.old, locked.lock)
    kept = lock.consumed if position is None else position
    told = None
    if changes is not None:
        told = {
            "new_pairs": [
                {"source": data.name, **members(pair, "prefix", "num_tokens", "since")}
                for data in changes.new_data
                for pair in data.pairs
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
        "num_pairs": sum(len(source.pairs) for source in lock.sources),
        "num_tokens": sum(pair.num_tokens for source in lock.sources for pair in source.pairs),
        "segments": [_segment(lock, segment) for segment in lock.segments],
        "changes": told,
        "stopped": locked.is_stopped,
        "no_document": locked.empty_records,
        **members(lock, "consumed", "num_samples", "cut_short"),
        **members(locked, "exhausted", "unknown_pairs", "dropped", "moved"),
    }
    if lock.early_end is not None:
        say(f"warning: {lock.early_end}")

    def shown(segment: LockedSegment) -> dict[str, Any]:
        total = sum(weight for _, weight in segment.weights)
        ranked = sorted(segment.weights, key=lambda each: (-each[1], each[0]))
        named = [(name_of(lock.sources[source].name), weight) for source, weight in ranked[:_MOST_NAMED]]
        if others := ranked[_MOST_NAMED:]:
            named.append((f"{len(others):,} others", sum(weight for _, weight in others)))
        words = ", ".join(f"{name} {weight / total:.3%}".replace(".000%", "%") for name, weight in named)
        return {**_segment(lock, segment), "weights": words}

    def lines() -> Iterator[str]:
        yield from above
        data = f"{counted(record['num_sources'], 'source')}, {counted(record['num_pairs'], 'pair')}"
        samples = "samples without end" if lock.num_samples is None else counted(lock.num_samples, "sample")
        what = f"{'wrote' if head['written'] else 'would write'} {head['path']}"
        yield f"{what}: {data}, {short(record['num_tokens'])} tokens; {samples}"
        if locked.unknown_pairs:
            say(records_may_be_elsewhere(locked.unknown_pairs))
        known: dict[str, Any] = {
            "segments": [] if locked.old is not None else list(map(shown, lock.segments)),
            "exhausted": list(map(members, locked.exhausted)),
            "denied without a document": locked.empty_records,
            "dropped": locked.dropped,
        }
        if locked.old is not None and changes is not None:
            if lock.consumed < locked.old.consumed:
                known["consumed before"] = locked.old.consumed
            known |= (told or {}) | {"new_segments": list(map(shown, changes.new_segments))}
            known |= {} if locked.moved is None else {"moved": members(locked.moved)}
        title = "" if locked.old is None else "changes"
        yield from facts_lines(title, {name: value for name, value in known.items() if value})
        if locked.old is not None:
            yield from () if changes or locked.dropped else ("  nothing changed",)
            yield from () if locked.moved else ("  no position moved",)
            if kept:
                said = "consumed" if position is None else "unchanged"
                yield f"  {said}: {kept:,} positions, as they were: digest {record['digest'][:16]}"

    return Answer(record, lines(), 0 if lock.early_end is None else 1)


def _segment(lock: RunLock, segment: LockedSegment) -> dict[str, Any]:
    weights = {lock.sources[source].name: weight for source, weight in segment.weights}
    return {**members(segment, "stage", "start", "num_samples", "sequence_length"), "weights": weights}


@dataclass(frozen=True, kw_only=True)
class AmendOptions(RunPath, BatchSizes):
    """Change a run from a position on, which training has not read yet: edit run.toml, as a person would, and lock the
    run anew. Prints the edit and what it means. Both files change, or none: what would move a sample before the
    position is refused.

    Attributes:
        at_position: from where on, as samples from 0 on.
        weights: shares, such as web=5,code=5.
        stage_name: name of the stage (default "from" and the position).
        sequence_length: tokens per sample.
        tokens: its tokens, such as 50B.
        samples: its samples.
        add_source: a new source, such as books='data/books/*'; may be repeated.
        deny: documents to be padding, such as web:12345, one a line.
        grow: take up pairs that sources did not have.
        dry_run: only say what would change.
        json: print one JSON object: path, written, position, diff, and what `run lock` prints.
    """

    EITHER: ClassVar[Either] = (("tokens", "samples"),)
    ONE_OF: ClassVar[OneOf] = {"--at-step or --at-position": ("at_position",)}

    at_position: Position | None = None
    weights: Annotated[Sequence[tuple[str, Fraction]], Written(metavar="NAME=W,…", parse=weights, group=_STAGE)] = ()
    stage_name: Annotated[str | None, Written(metavar="NAME", group=_STAGE)] = None
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_STAGE)] = None
    tokens: Annotated[int | None, Written(parse=token_count, group=_STAGE)] = None
    samples: Annotated[int | None, Written(parse=token_count, group=_STAGE)] = None
    add_source: Annotated[
        tuple[tuple[str, str], ...], Written(metavar="NAME=DATA", parse=named_data, is_repeated=True, group=_DATA)
    ] = ()
    deny: Annotated[str | None, Written(metavar="FILE", group=_DATA)] = None
    grow: Annotated[bool, Written(group=_DATA)] = False
    dry_run: bool = False


def run_amend(options: AmendOptions) -> Answer:
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.at_position, lock)
    assert position is not None  # one of both is needed
    sources = dict(options.add_source)
    if len(sources) < len(options.add_source):
        message = "expected each new source once, found one twice in --add-source"
        raise ConfigError(message, hint="list several data of a source in run.toml")
    others = {"position": position, "sources": sources, "denied": options.deny, "grows": options.grow}
    amended = amend_run(
        options.run_path, Amendment(**arguments_of(options, Amendment, **others)), write=not options.dry_run
    )
    diff = difference(options.run_path, amended, after=f"from position {position} on")
    head = {"path": lock_path(options.run_path), "written": not options.dry_run, "position": position, "diff": diff}
    return _answer(amended.locked, head, position=position, above=[*diff, *([""] if diff else [])])


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RunPath):
    """Compare the data of a run with its lock: sizes, counts, the start of each index, and the checksums in manifests.
    The exit status is 1 if anything differs.

    Attributes:
        full: read all data, and compare the checksums of all bytes.
        json: print one JSON object: path, run, num_pairs, full and problems.
    """

    full: bool = False


def run_check(options: CheckOptions) -> Answer:
    opened = Run.open(options.run_path)
    num_pairs = sum(len(source.pairs) for source in opened.lock.sources)
    problems = check_sources(opened.lock, full=options.full)
    num_wrong = sum(not problem.is_unknown for problem in problems)
    record = {"path": options.run_path, "run": opened.identity, "num_pairs": num_pairs, "full": options.full}
    said = [f"{'unknown' if problem.is_unknown else 'problem'}: {problem.message}" for problem in problems]
    lines = facts_lines(counted(num_wrong, "problem") if num_wrong else "ok", {**record, "problems": said})
    return Answer({**record, "problems": problems}, lines, 1 if num_wrong else 0)


@dataclass(frozen=True, kw_only=True)
class IdOptions(RunPath, BatchSizes):
    """Print what names a run: a SHA-256 of its seed and of the data that it began with, which stays while the run
    changes and goes on, and stands in the state of loaders as `run`. And with a position, or where some were consumed,
    the digest of the order before it. A lock may be named instead of a run.toml.

    Attributes:
        position: a position, as samples from 0 on (default: what was consumed).
        json: print one JSON object: path, run, position, digest and num_samples.
    """

    position: Position | None = None


def run_id(options: IdOptions) -> Answer:
    lock = lock_at(options.run_path)
    position = options.position_of(options.position, lock)
    if position is None:
        position = lock.consumed or None
    digest = None if position is None else order_digest(lock, position)
    found = {"path": options.run_path, "run": run_identity(lock), "position": position, "digest": digest}
    lines = [f"{found['run']}  {options.run_path}"]
    if position is not None:
        lines.append(f"{digest}  order before position {position:,}")
    return Answer({**found, "num_samples": lock.num_samples}, lines)


@dataclass(frozen=True, kw_only=True)
class DigestOptions(RunPath, BatchSizes):
    """Print a SHA-256 of all that decides which samples stand before a position, and of nothing else: two runs with one
    digest have read the same up to there.

    Attributes:
        position: the position, as samples from 0 on (default: what was consumed, or the end).
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
