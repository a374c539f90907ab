"""Locking a run: from what `run.toml` asks for to exactly which data that is, without moving what is consumed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.run.amounts import MOST_SAMPLES
from tokenloom.run.changes import Moved, check_past, dropped_denials, first_moved
from tokenloom.run.document_names import DocumentName, NamedDocuments, parse_name, resolve_names
from tokenloom.run.held_out import check_not_emptied
from tokenloom.run.lock import (
    MEGATRON_ORDER,
    LockedDenial,
    LockedSource,
    RunLock,
    lock_bytes,
    lock_path,
    read_lock_if_there,
    write_lock,
)
from tokenloom.run.megatron import check_past_in_megatron, first_moved_in_megatron, megatron_segment
from tokenloom.run.members import Reading
from tokenloom.run.packs import pack_counter
from tokenloom.run.resolve import Exhausted, Resolved, resolve
from tokenloom.run.settings import DenialSettings, RunSettings, read_run
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
    read = old if kept else None  # else nothing that was locked has to stay
    since = kept if at is None else begin
    new, named = _with_data(settings, read, since=since, reading=reading)
    new = replace(new, consumed=known, amended=0 if old is None else amended)
    resolved: Resolved | None = None
    if new.is_megatron:
        new = replace(new, segments=(megatron_segment(settings, new.sources),))
    else:
        resolved = resolve(settings, new.sources, read, kept)
        new = replace(new, segments=resolved.segments, cut_short=resolved.cut_short)
        check_not_emptied(new)
    locked = LockedRun(
        lock=new,
        old=old,
        moved=None,
        exhausted=() if resolved is None else resolved.exhausted,
        is_stopped=resolved is not None and resolved.stopped,
        empty_records=tuple(dict.fromkeys(each for found in named for each in found.empty_records)),
        unknown_pairs=tuple(dict.fromkeys(each for found in named for each in found.unknown_pairs)),
    )
    if old is None:
        return locked
    dropped = tuple(dropped_denials(old, new))
    if old.is_megatron or new.is_megatron:
        check_past_in_megatron(old, new, max(known, begin))
        moved = first_moved_in_megatron(old, new)
    else:
        check_past(old, new, max(known, begin))
        moved = first_moved(old, new, min(lock.num_samples or MOST_SAMPLES for lock in (old, new)))
    if dropped and "denials" not in drop:
        more = f" and {len(dropped) - _MOST_NAMED:,} more" if len(dropped) > _MOST_NAMED else ""
        names = ", ".join(dropped[:_MOST_NAMED]) + more
        message = f"`{settings.path}` would deny no more, or later, what the lock denies: {names}"
        hint = "restore its `[[denied]]`; or drop these: `tokenloom run lock --drop denials`"
        raise ConfigError(message, hint=hint)
    if moved is not None and consumed is None and at is None and not old.consumed:
        message = (
            f"`{settings.path}` would change what stands at position {moved.position}: {moved.before} would become "
            f"{moved.after}"
        )
        hint = "say how far training has come, with `--consumed-samples`; 0 if it has not begun"
        raise ConfigError(message, hint=hint)
    return replace(locked, moved=moved, dropped=dropped)


def _with_data(
    settings: RunSettings, read: RunLock | None, *, since: int, reading: Reading
) -> tuple[RunLock, list[NamedDocuments]]:
    """Returns the lock of a run without its segments, and what the names in each `[[denied]]` stand for.

    Args:
        settings: the run.
        read: the lock before; None where nothing that was locked has to stay.
        since: from where on new pairs are there.
        reading: how to read data.
    """
    is_megatron = settings.order == "megatron"
    tokenizer: Any = None
    locked = None
    if settings.tokenizer is not None and settings.located_tokenizer is not None:
        tokenizer = load_tokenizer(settings.located_tokenizer)
        is_ambiguous_allowed = bool(settings.samples.get("allow_ambiguous_pad_tokens"))
        locked = locked_tokenizer(settings.tokenizer, tokenizer, allow_ambiguous_pad=is_ambiguous_allowed)
    sources = lock_sources(
        settings,
        old=read,
        at=since,
        tokenizer=tokenizer,
        count_packs=None if is_megatron else pack_counter(settings, old=read, object_storage=reading.object_storage),
        allow_data_mismatch=reading.allow_data_mismatch,
        object_storage=reading.object_storage,
    )
    denials, named = _denied(settings, sources, reading)
    lock = RunLock(
        order=MEGATRON_ORDER if settings.order == "megatron" else settings.order,
        seed=settings.seed,
        documents=settings.documents,
        windows=settings.windows,
        mixing_block=settings.mixing_block,
        dataset=settings.dataset,
        samples=settings.samples,
        tokenizer=locked,
        sources=sources,
        segments=(),
        denials=denials,
        settings_sha256=settings.sha256,
        content_sha256=settings.content_sha256,
    )
    return lock, named


def _denied(
    settings: RunSettings, sources: Sequence[LockedSource], reading: Reading
) -> tuple[tuple[LockedDenial, ...], list[NamedDocuments]]:
    """Returns what a run denies of its sources, by position; and what the names in each `[[denied]]` stand for.

    Raises:
        ConfigError: there is no such document or record, or a list of them cannot be read.
    """
    denials: list[LockedDenial] = []
    named = []
    for denial in settings.denied:
        found = resolve_names(_listed(denial, settings), sources, object_storage=reading.object_storage)
        named.append(found)
        denials += _by_position(denial, found, sources)
    return tuple(sorted(denials, key=lambda denial: denial.start)), named


def _by_position(
    denial: DenialSettings, found: NamedDocuments, sources: Sequence[LockedSource]
) -> Iterator[LockedDenial]:
    """Yields the documents of a denial, first those from its own position on.

    What a record became in pairs that come later is denied from where these come: so a source that grows, and has a
    record once more, leaves what was read as it was.
    """
    later: dict[int, dict[int, list[int]]] = {denial.start: {}}
    for source, documents in found.by_source:
        pairs = sources[source].pairs
        ends = list(accumulate(pair.num_documents for pair in pairs))
        number = 0
        for document in documents:
            while document >= ends[number]:
                number += 1
            of_record = (source, document) in found.of_records
            start = max(denial.start, pairs[number].since) if of_record else denial.start
            later.setdefault(start, {}).setdefault(source, []).append(document)
    for start, by_source in sorted(later.items()):
        yield LockedDenial(
            start=start, documents=tuple((source, tuple(chosen)) for source, chosen in sorted(by_source.items()))
        )


def _listed(denial: DenialSettings, settings: RunSettings) -> Iterator[DocumentName]:
    yield from denial.documents
    if denial.file is None:
        return
    path = settings.located(denial.file)
    names = [source.name for source in settings.sources]
    for number, line in enumerate(_lines_of(path), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield parse_name(line, names)
            except ConfigError as error:
                message = f"`{path}`, line {number}: {error.message}"
                raise ConfigError(message, hint=error.hint) from None


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{path}`: expected a list of documents such as `web:12345`, one a line; it cannot be read: {error}"
        raise ConfigError(message) from error


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
