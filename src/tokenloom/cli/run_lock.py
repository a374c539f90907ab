"""`tokenloom run lock`: from what run.toml asks for to exactly which data that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, Written
from tokenloom.cli.run_common import BatchSizes, RunPath, shares_of, stage_of
from tokenloom.cli.stopping import say
from tokenloom.rendering.words import counted, name_of, short
from tokenloom.run.audit.source_origins import records_may_be_elsewhere
from tokenloom.run.changes import lock_changes
from tokenloom.run.digest import order_digest
from tokenloom.run.lock import LockedSegment, RunLock, lock_path, read_lock_if_there
from tokenloom.run.locking import DROPS, LockedRun, lock_run
from tokenloom.setting_types import Number

_MOST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
    """Write run.lock beside run.toml: which data the run reads, from headers and manifests alone. Says what has
    changed, and the first position that holds another sample than before; what was consumed cannot, or nothing is
    written.

    Attributes:
        consumed_samples: how far training has come, as samples from 0 on.
        consumed_step: how far training has come, as steps from 0 on.
        drop: let go of denials that run.toml has no more; or of what was consumed, after going back to an earlier
            checkpoint.
        dry_run: only say what would change.
        json: print one JSON object: path, written, consumed, digest, num_samples, num_sources, num_pairs, num_tokens,
            segments, changes, exhausted, stopped, cut_short, no_document (records that gave none), unknown_pairs
            (prefixes that do not know their input), dropped and moved.
    """

    EITHER: ClassVar[Either] = (("consumed_samples", "consumed_step"),)

    consumed_samples: Number | None = None
    consumed_step: Number | None = None
    drop: Annotated[tuple[str, ...], Written(choices=DROPS, is_repeated=True)] = ()
    dry_run: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Locks, and prints what that changed."""
    path = lock_path(options.run_path)
    consumed = options.position_of(options.consumed_samples, options.consumed_step, read_lock_if_there(path))
    locked = lock_run(options.run_path, consumed=consumed, drop=options.drop, write=not options.dry_run)
    if options.json:
        print_json({"path": path, "written": not options.dry_run, **described(locked)})
    else:
        print_locked(locked, path=path, is_written=not options.dry_run)
    return status_of(locked.lock)


def status_of(lock: RunLock) -> int:
    """Returns the exit status for a lock: 1 if the run ends before its stages do, which is said."""
    if lock.early_end is None:
        return 0
    say(f"warning: {lock.early_end}")
    return 1


def described(locked: LockedRun, *, position: int | None = None) -> dict[str, Any]:
    """Returns what locking came to, for JSON; the digest is of a position, or of what was consumed."""
    lock, old = locked.lock, locked.old
    changes = None if old is None else lock_changes(old, lock)
    return {
        "consumed": lock.consumed,
        "digest": order_digest(lock, lock.consumed if position is None else position),
        "num_samples": lock.num_samples,
        "num_sources": len(lock.sources),
        "num_pairs": sum(len(source.pairs) for source in lock.sources),
        "num_tokens": _num_tokens(lock),
        "segments": [_segment(lock, segment) for segment in lock.segments],
        "changes": None
        if changes is None
        else {
            "new_pairs": [
                {"source": data.name, "prefix": pair.prefix, "num_tokens": pair.num_tokens, "since": pair.since}
                for data in changes.new_data
                for pair in data.pairs
            ],
            "new_sources": list(changes.new_sources),
            "gone": list(changes.gone),
            "new_segments": [_segment(lock, segment) for segment in changes.new_segments],
            "num_denied": changes.num_denied,
            "settings": list(changes.others),
        },
        "exhausted": [dataclasses.asdict(each) for each in locked.exhausted],
        "stopped": locked.is_stopped,
        "cut_short": lock.cut_short,
        "no_document": list(locked.empty_records),
        "unknown_pairs": list(locked.unknown_pairs),
        "dropped": list(locked.dropped),
        "moved": None if locked.moved is None else dataclasses.asdict(locked.moved),
    }


def print_locked(locked: LockedRun, *, path: str, is_written: bool, position: int | None = None) -> None:
    """Prints what locking came to, what changed, and that nothing did before a position, or of what was consumed."""
    lock = locked.lock
    pairs = sum(len(source.pairs) for source in lock.sources)
    end = lock.num_samples
    print(
        f"{'wrote' if is_written else 'would write'} {path}: {counted(len(lock.sources), 'source')}, "
        f"{counted(pairs, 'pair')}, {short(_num_tokens(lock))} tokens; "
        f"{'samples without end' if end is None else counted(end, 'sample')}"
    )
    if locked.old is None:
        _print_lines([_segment_line(lock, segment) for segment in lock.segments])
    for each in locked.exhausted:
        what = {"stop": "the run ends there", "renormalise": "others are read on", "repeat": "it is read on"}
        print(
            f"  {name_of(each.source)} has been read `max_passes` times at position {each.position:,}: "
            f"{what[each.on_exhausted]}"
        )
    _print_lines(f"{name}, which is denied, gave no document" for name in locked.empty_records)
    if locked.unknown_pairs:
        say(records_may_be_elsewhere(locked.unknown_pairs))
    if locked.old is None:
        return
    _print_changes(locked.old, lock, locked.dropped)
    if locked.moved is not None:
        moved = locked.moved
        print(f"  first position that moved: {moved.position:,}")
        print(f"    was     {moved.before}\n    is now  {moved.after}")
    else:
        print("  no position moved")
    if kept := lock.consumed if position is None else position:
        said = "consumed" if position is None else "unchanged"
        print(f"  {said}: {kept:,} positions, as they were: digest {order_digest(lock, kept)[:16]}")


def _print_changes(old: RunLock, lock: RunLock, dropped: Sequence[str]) -> None:
    changes = lock_changes(old, lock)
    stages = {segment.stage for segment in old.segments}
    _print_lines(f"dropped: {name}, which was denied" for name in dropped)
    if lock.consumed < old.consumed:
        print(f"  dropped: {old.consumed:,} positions were consumed, now {lock.consumed:,}")
    if not changes and not dropped:
        print("  nothing changed")
    _print_lines(
        f"{'new source' if data.name in changes.new_sources else 'new data of'} {name_of(data.name)}: "
        f"{counted(len(data.pairs), 'pair')}, {short(sum(pair.num_tokens for pair in data.pairs))} tokens, "
        f"from position {min(pair.since for pair in data.pairs):,} on"
        for data in changes.new_data
    )
    _print_lines(f"source {name_of(name)} is gone" for name in changes.gone)
    _print_lines(
        f"{'changed' if segment.stage in stages else 'new'} {_segment_line(lock, segment)}"
        for segment in changes.new_segments
    )
    if changes.num_denied:
        print(f"  {counted(changes.num_denied, 'document')} denied")
    if changes.others:
        print(f"  changed: {', '.join(changes.others)}")


def _print_lines(lines: Any) -> None:
    """Prints the first lines, and how many there are more."""
    for number, line in enumerate(lines := list(lines)):
        if number == _MOST_LINES:
            print(f"  … and {len(lines) - number:,} more; --json prints all")
            return
        print(f"  {line}")


def _segment_line(lock: RunLock, segment: LockedSegment) -> str:
    stop = "∞" if segment.num_samples is None else f"{segment.start + segment.num_samples - 1:,}"
    return (
        f"{stage_of(segment.stage)}: positions {segment.start:,} to {stop} of "
        f"{segment.sequence_length:,} tokens\n{shares_of(lock, segment)}"
    )


def _segment(lock: RunLock, segment: LockedSegment) -> dict[str, Any]:
    weights = {lock.sources[source].name: weight for source, weight in segment.weights}
    return {
        "stage": segment.stage,
        "start": segment.start,
        "num_samples": segment.num_samples,
        "sequence_length": segment.sequence_length,
        "weights": weights,
    }


def _num_tokens(lock: RunLock) -> int:
    return sum(pair.num_tokens for source in lock.sources for pair in source.pairs)
