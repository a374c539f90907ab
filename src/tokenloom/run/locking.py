"""Locking a run: from what `run.toml` asks for to exactly which data that is, without moving what is consumed."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.run.changes import Moved, check_past, first_moved
from tokenloom.run.denied import check_not_emptied
from tokenloom.run.lock import MEGATRON_ORDER, RunLock
from tokenloom.run.lock_changes import dropped_denials
from tokenloom.run.lock_denials import LockedDenials, lock_denials
from tokenloom.run.lock_file import lock_bytes, lock_path, read_lock_if_there, write_lock
from tokenloom.run.megatron import check_past_in_megatron, first_moved_in_megatron, megatron_segment
from tokenloom.run.members import Reading
from tokenloom.run.packs import pack_counter
from tokenloom.run.resolve import Exhausted, Resolved, resolve
from tokenloom.run.settings import RunSettings, read_run
from tokenloom.run.sources import lock_sources
from tokenloom.run.tokenizer import locked_tokenizer
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.publishing import FileGroup, OutputLock, publish_together
from tokenloom.tokenizers.load import load_tokenizer

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    """What locking came to.

    Attributes:
        lock: the lock.
        old: the lock that was there; None if there was none.
        moved: the first position where something else stands than before; None if all positions of the old lock are as
            they were.
        exhausted: where sources have been read as often as they may be.
        is_stopped: whether the run ends before its last stage does, because of that.
        empty_records: names of records that are denied and gave no document.
        unknown_pairs: prefixes of pairs that do not know their input, where records are denied: they may hold the same.
        dropped: names of documents that the old lock denies, and this one later or not at all.
    """

    lock: RunLock
    old: RunLock | None
    moved: Moved | None
    exhausted: tuple[Exhausted, ...] = ()
    is_stopped: bool = False
    empty_records: tuple[str, ...] = ()
    unknown_pairs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


DROPS = ("consumed", "denials")
"""What of an old lock a new one may be told to drop."""


def lock_run(
    path: str | os.PathLike[str],
    *,
    consumed: int | None = None,
    at: int | None = None,
    settings: RunSettings | None = None,
    reading: Reading | None = None,
    drop: Collection[str] = (),
    write: bool = True,
) -> LockedRun:
    """Locks a run anew: what `run.toml` says now, with all that is consumed as it was.

    Args:
        path: path of `run.toml`.
        consumed: positions that training has read, which must not move; None for what the lock knows of that.
        at: position from which on the run is amended, where it is: what lies before it must not move, read or not.
        settings: what `run.toml` is going to say, where that is not what it says yet.
        reading: how to read data.
        drop: what of the old lock may go: "denials" that `run.toml` has no more, or later; and what was "consumed",
            where `consumed` is less than the lock says.
        write: whether to write the lock; else only to see what it would be.

    Raises:
        ConfigError: `run.toml` is wrong; a consumed position would move, or one of which nobody said whether it is
            consumed; or something would be dropped that `drop` does not name. The lock is as it was.
        OutputBusyError: another process is changing the run; likewise.
        DatasetNotFoundError, DatasetFormatError, TokenizerError: data are missing, damaged or changed.
    """
    with OutputLock(lock_path(os.fspath(path))) if write else nullcontext():
        settings = read_run(path) if settings is None else settings
        locked = _locked(settings, consumed, at, reading or Reading(), drop)
        if write:
            write_lock(lock_path(settings.path), locked.lock)
    return locked


def _locked(
    settings: RunSettings, consumed: int | None, at: int | None, reading: Reading, drop: Collection[str]
) -> LockedRun:
    old = read_lock_if_there(lock_path(settings.path))
    if consumed is not None:
        checked_integer("consumed", consumed, at_least=0)
    known = (0 if old is None else old.consumed) if consumed is None else consumed
    if old is not None and known < old.consumed and "consumed" not in drop:
        message = f"the lock of `{settings.path}` says that {old.consumed} positions were consumed, found {known}"
        hint = "if training went back to an earlier checkpoint: `tokenloom run lock --drop consumed`"
        raise ConfigError(message, hint=hint)
    begin = 0 if at is None else checked_integer("at", at, at_least=known)
    amended = max(begin, 0 if old is None or consumed == 0 else old.amended)
    kept = 0 if old is None else max(known, amended)
    new, resolved, denied = _resolved(
        settings,
        old if kept else None,  # else nothing that was locked has to stay
        consumed=known,
        amended=0 if old is None else amended,
        kept=kept,
        since=kept if at is None else begin,
        reading=reading,
    )
    moved, dropped = None, tuple[str, ...]()
    if old is not None:
        if old.is_megatron or new.is_megatron:
            check_past_in_megatron(old, new, max(known, begin))
            moved = first_moved_in_megatron(old, new)
        else:
            check_past(old, new, max(known, begin))
            moved = first_moved(old, new, _end_of_both(old, new))
        dropped = tuple(dropped_denials(old, new))
        if dropped and "denials" not in drop:
            message = f"`{settings.path}` would deny no more, or later, what the lock denies: {_some(dropped)}"
            hint = "restore its `[[denied]]`; or drop these: `tokenloom run lock --drop denials`"
            raise ConfigError(message, hint=hint)
        if moved is not None and consumed is None and at is None and not old.consumed:
            message = (
                f"`{settings.path}` would change what stands at position {moved.position}: {moved.before} would "
                f"become {moved.after}"
            )
            hint = "say how far training has come, with `--consumed-samples`; 0 if it has not begun"
            raise ConfigError(message, hint=hint)
    return LockedRun(
        lock=new,
        old=old,
        moved=moved,
        exhausted=() if resolved is None else resolved.exhausted,
        is_stopped=resolved is not None and resolved.stopped,
        empty_records=denied.empty_records,
        unknown_pairs=denied.unknown_pairs,
        dropped=dropped,
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _end_of_both(old: RunLock, new: RunLock) -> int:
    ends = [
        last.start + last.num_samples
        for last in (lock.segments[-1] for lock in (old, new))
        if last.num_samples is not None
    ]
    return min(ends, default=1 << 60)


def _resolved(
    settings: RunSettings, read: RunLock | None, *, consumed: int, amended: int, kept: int, since: int, reading: Reading
) -> tuple[RunLock, Resolved | None, LockedDenials]:
    tokenizer: Any = None
    if settings.tokenizer is not None and settings.located_tokenizer is not None:
        tokenizer = load_tokenizer(settings.located_tokenizer)
    """Returns the lock of a run.

    Args:
        settings: the run.
        read: the lock before; None where nothing that was locked has to stay.
        consumed, amended: as they will stand in the lock.
        kept: what lies before it stays as it was, where the settings agree.
        since: from where on new pairs are there.
        reading: how to read data.
    """
    sources = lock_sources(
        settings,
        old=read,
        at=since,
        tokenizer=tokenizer,
        count_packs=None
        if settings.order == "megatron"
        else pack_counter(settings, old=read, object_storage=reading.object_storage),
        allow_data_mismatch=reading.allow_data_mismatch,
        object_storage=reading.object_storage,
    )
    denied = lock_denials(settings, sources, object_storage=reading.object_storage)
    lock = RunLock(
        order=MEGATRON_ORDER if settings.order == "megatron" else settings.order,
        seed=settings.seed,
        documents=settings.documents,
        windows=settings.windows,
        mixing_block=settings.mixing_block,
        dataset=settings.dataset,
        samples=settings.samples,
        tokenizer=None
        if tokenizer is None
        else locked_tokenizer(
            str(settings.tokenizer),
            tokenizer,
            allow_ambiguous_pad=bool(settings.samples.get("allow_ambiguous_pad_tokens")),
        ),
        sources=sources,
        segments=(),
        denials=denied.denials,
        consumed=consumed,
        amended=amended,
        settings_sha256=settings.sha256,
        content_sha256=settings.content_sha256,
    )
    if lock.is_megatron:
        return replace(lock, segments=(megatron_segment(settings, sources),)), None, denied
    resolved = resolve(settings, sources, read, kept)
    lock = replace(lock, segments=resolved.segments, cut_short=resolved.cut_short)
    check_not_emptied(lock)
    return lock, resolved, denied


def write_both(path: str, text: str, lock: RunLock) -> None:
    """Writes `run.toml` and its lock, both or none; the caller holds the `OutputLock` of the lock.

    Args:
        path: path of `run.toml`.
        text: what will be in it.
        lock: its lock.

    Raises:
        StorageError: they cannot be written; both are as they were.
    """
    key = lock_path(path)
    files = [PendingFile(path), PendingFile(key)]
    try:
        files[0].write(text.encode())
        files[1].write(lock_bytes(lock, path=key))
        publish_together([FileGroup(key=key, files=files, names=[path, key])], replace=True, locked=[key])
    finally:
        for file in files:
            file.discard()
