"""`tokenloom deny`: take documents out of a run from a step on, and say what that changes."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, Written
from tokenloom.cli.run_common import WIDTH, Dealing, RunPath
from tokenloom.cli.stopping import say
from tokenloom.cli.when import HEADING, line_of
from tokenloom.loading.batch_sizes import Topology
from tokenloom.rendering.words import counted
from tokenloom.run.amend import Amendment, Denied, Documents, deny_documents
from tokenloom.run.audit.source_origins import records_may_be_elsewhere
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.document_names import record_name
from tokenloom.run.lock import lock_path, read_lock
from tokenloom.setting_types import Number

_MOST_SHOWN = 10


_DENIED = "what is denied (one or more of these)"
_PRINTED = "what is printed"


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, Dealing):
    """Deny documents from a position on, which training has not read yet: they become padding without loss, and all
    else stays where it is. Adds a [[denied]] to run.toml and locks the run anew; both files change or none. Prints the
    steps that change, and digests that show that nothing else moved.

    Attributes:
        document: document N, from 0, of source NAME.
        record: what line or row N, from 1, of FILE became.
        documents_file: a list of both, one a line.
        reason: why; kept in run.toml.
        from_position: from where on, as samples from 0 on.
        from_step: from where on, as steps from 0 on.
        until_position: list changes before position N.
        until_step: list changes before step N.
        since_start: also at which steps before that the documents were trained on.
        dry_run: only say what would change.
        json: print one JSON object: path, written, position, reason, documents, already_denied, held_out and
            no_document (names), unknown_pairs (prefixes that do not know their input), listed_until, num_positions,
            num_tokens, changed and seen (spans as `trace --json` has them; seen is null without --since-start), digest
            and order_without_denials (before and after), and diff.
    """

    EITHER: ClassVar[Either] = (("from_position", "from_step"), ("until_position", "until_step"))
    ONE_OF: ClassVar[OneOf] = {
        "--document, --record or --documents-file": ("document", "record", "documents_file"),
        "--from-step or --from-position": ("from_step", "from_position"),
    }

    document: Annotated[tuple[str, ...], Written(metavar="NAME:N", is_repeated=True, group=_DENIED)] = ()
    record: Annotated[tuple[str, ...], Written(metavar="FILE:N", is_repeated=True, group=_DENIED)] = ()
    documents_file: Annotated[str | None, Written(metavar="FILE", group=_DENIED)] = None
    reason: Annotated[str | None, Written(metavar="TEXT", group=_DENIED)] = None
    from_position: Number | None = None
    from_step: Number | None = None
    until_position: Annotated[Number | None, Written(group=_PRINTED)] = None
    until_step: Annotated[Number | None, Written(group=_PRINTED)] = None
    since_start: Annotated[bool, Written(group=_PRINTED)] = False
    dry_run: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Denies, and prints what that changes."""
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.from_position, options.from_step, lock)
    assert position is not None  # one of both is needed
    topology = options.topology(lock)
    until = options.position_of(options.until_position, options.until_step, lock)
    names = [source.name for source in lock.sources]
    denial = Amendment(
        position=position,
        denied_documents=(*options.document, *(record_name(record, names) for record in options.record)),
        denied=options.documents_file,
        reason=options.reason,
    )
    denied = deny_documents(
        options.run_path, denial, until=until, since_start=options.since_start, write=not options.dry_run
    )
    if options.json:
        print_json(_described(denied, denial, topology, options))
    else:
        _print(denied, denial, topology, options)
    if unknown := denied.amended.locked.unknown_pairs:
        say(records_may_be_elsewhere(unknown))
    return 0 if denied.nothing_else_moved else 1


def _described(denied: Denied, denial: Amendment, topology: Topology | None, options: Options) -> dict[str, Any]:
    """Returns all of it for programs."""
    return {
        "path": options.run_path,
        "written": not options.dry_run,
        "position": denial.position,
        "reason": denial.reason,
        "documents": _names(denied, denied.documents),
        "already_denied": _names(denied, denied.again),
        "held_out": _names(denied, denied.held_out),
        "no_document": list(denied.empty_records),
        "unknown_pairs": list(denied.amended.locked.unknown_pairs),
        "listed_until": denied.stop,
        "num_positions": len(np.unique(denied.changed.positions)),
        "num_tokens": int(denied.changed.lengths.sum()),
        "changed": list(_with_steps(denied.changed, topology).rows()),
        "seen": None if denied.seen is None else list(_with_steps(denied.seen, topology).rows()),
        "digest": dict(zip(("before", "after"), denied.digests, strict=True)),
        "order_without_denials": dict(zip(("before", "after"), denied.order_digests, strict=True)),
        "diff": _diff(denied, options),
    }


def _print(denied: Denied, denial: Amendment, topology: Topology | None, options: Options) -> None:
    print(*_diff(denied, options), sep="\n", end="\n\n")
    position, (before, after) = denial.position, denied.digests
    what = "to be denied" if options.dry_run else "denied"
    print(f"{what} from position {position:,} on: {_count(denied.documents)}")
    for what, documents in (
        ("denied already", denied.again),
        ("held out, so never trained on; padding in what is held out, too", denied.held_out),
    ):
        if documents:
            _print_wrapped(f"of these {_count(documents)} {what}: {_some(_names(denied, documents))}")
    if denied.empty_records:
        _print_wrapped(
            f"{counted(len(denied.empty_records), 'record')} gave no document, or went into other data: "
            f"{_some(list(denied.empty_records))}"
        )
    is_all = denied.stop == denied.amended.locked.lock.num_samples
    where = "" if is_all else f" before position {denied.stop:,}"
    print(f"\n{_changes(denied.changed, topology)} {'would become' if options.dry_run else 'become'} padding{where}")
    _print_table(denied.changed, topology)
    if denied.seen is not None:
        print(f"\nbefore that, {_changes(denied.seen, topology)} were trained on, or are about to be")
        _print_table(denied.seen, topology)
    print(f"\norder before position {position:,}: digest {before[:16]} before, {after[:16]} after")
    before, after = denied.order_digests
    print(f"without denials, up to position {denied.stop:,}: {before[:16]} before, {after[:16]} after")
    print("nothing else moves" if denied.nothing_else_moved else "SOMETHING ELSE MOVES: the digests differ")


def _changes(table: SpanTable, topology: Topology | None) -> str:
    """Returns how much there is in a table."""
    words = f"{counted(int(table.lengths.sum()), 'token')} in {counted(len(np.unique(table.positions)), 'position')}"
    if topology is None or not len(table):
        return words
    steps = np.unique(topology.steps(table.positions))
    return f"{words} of {counted(len(steps), 'step')}"


def _print_table(table: SpanTable, topology: Topology | None) -> None:
    if not len(table):
        return
    print(HEADING)
    for row in _with_steps(table.take(np.arange(min(len(table), _MOST_SHOWN))), topology).rows():
        print(line_of({**row, "seen": None, "denied": False}))
    if len(table) > _MOST_SHOWN:
        print(f"… and {len(table) - _MOST_SHOWN:,} more spans; --json prints all")


def _with_steps(table: SpanTable, topology: Topology | None) -> SpanTable:
    return table if topology is None else table.with_steps(topology)


def _names(denied: Denied, documents: Documents) -> list[str]:
    sources = denied.amended.locked.lock.sources
    return [
        f"{sources[source].name}:{document}" for source, chosen in documents.items() for document in chosen.tolist()
    ]


def _count(documents: Documents) -> str:
    return counted(sum(len(chosen) for chosen in documents.values()), "document")


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _print_wrapped(text: str) -> None:
    print(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _diff(denied: Denied, options: Options) -> list[str]:
    before, after = (text.splitlines() for text in (denied.amended.before, denied.amended.after))
    names = f"{options.run_path} before", f"{options.run_path} after"
    return list(difflib.unified_diff(before, after, *names, n=1, lineterm=""))
