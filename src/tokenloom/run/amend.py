"""Changing a run from a position on: `run.toml` is edited, the run is locked anew, and nothing before it moves.

Both files change, or none does: what would be locked is worked out before anything is written. What is denied becomes
padding without loss; that all else stays where it is, digests show: of the order before the position, and of the whole
order without its denials.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.run.audit.occurrences import denied_from
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.changes import lock_changes
from tokenloom.run.digest import order_digest
from tokenloom.run.document_names import parse_name
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import RunLock, lock_path, read_lock
from tokenloom.run.locking import LockedRun, lock_run, write_both
from tokenloom.run.members import Reading
from tokenloom.run.run import Run
from tokenloom.run.settings import (
    DenialSettings,
    RunSettings,
    Shares,
    SourceSettings,
    StageSettings,
    from_folder,
    parse_run,
)
from tokenloom.run.toml_edit import rewritten
from tokenloom.run.toml_file import did_you_mean, read_toml
from tokenloom.storage.publishing import OutputLock


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A change of a run from a position on.

    Attributes:
        position: the first position that may hold something else.
        weights: shares of the sources in a new stage that begins there; empty for those of now.
        stage_name: name of the new stage; None for one of its position.
        sequence_length: tokens per sample in the new stage; None for that of now.
        tokens, samples: size of the new stage; with none, it is what is left of the stage that it cuts short.
        sources: data of new sources, by name.
        denied: a file that lists documents to be padding from there on; None for none.
        denied_documents: names of such documents.
        reason: why they are denied, in words.
        grows: whether sources take up pairs that they did not have.
    """

    position: int
    weights: tuple[tuple[str, Fraction], ...] = ()
    stage_name: str | None = None
    sequence_length: int | None = None
    tokens: int | None = None
    samples: int | None = None
    sources: Mapping[str, str] | None = None
    denied: str | None = None
    denied_documents: tuple[str, ...] = ()
    reason: str | None = None
    grows: bool = False

    @property
    def has_stage(self) -> bool:
        """Whether a new stage begins."""
        return bool(self.weights) or any(
            each is not None for each in (self.stage_name, self.sequence_length, self.tokens, self.samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended:
    """What an amendment came to: the text of `run.toml` before and after, and the locks."""

    before: str
    after: str
    locked: LockedRun


def amend_run(
    path: str | os.PathLike[str],
    amendment: Amendment,
    *,
    reading: Reading | None = None,
    write: bool = True,
    check: Callable[[Amended], None] | None = None,
) -> Amended:
    """Changes a run from a position on.

    Args:
        path: path of `run.toml`; its lock lies beside it.
        amendment: the change.
        reading: how to read data.
        write: whether to write both files; else only to see what they would be.
        check: is given what is going to be written, and may refuse it.

    Raises:
        ConfigError: the change is none, or a position before it would move; both files are as they were.
        OutputBusyError: somebody else is changing the run; likewise.
        DatasetNotFoundError, DatasetFormatError, TokenizerError: data are missing, damaged or changed; likewise.
    """
    path = os.fspath(path)
    with OutputLock(lock_path(path)) if write else nullcontext():  # else one of two changes would be lost
        amended = _amended(path, amendment, reading=reading)
        if check is not None:
            check(amended)
        if write:
            write_both(path, amended.after, amended.locked.lock)
    return amended


def _amended(path: str, amendment: Amendment, *, reading: Reading | None) -> Amended:
    old = read_lock(lock_path(path))
    before = read_toml(path)
    settings = parse_run(before, path=path)
    _check(amendment, settings, old)
    settings = replace(settings, sources=(*settings.sources, *_new_sources(amendment, settings)))
    if amendment.has_stage:
        settings = replace(settings, stages=_with_stage(settings, amendment, old))
    settings = replace(settings, denied=(*settings.denied, *_new_denials(amendment, settings)))
    after, new = rewritten(before, settings)
    locked = lock_run(path, at=amendment.position, settings=new, reading=reading, write=False)
    _check_growth(amendment, locked)
    return Amended(before=before, after=after, locked=locked)


def _check(amendment: Amendment, settings: RunSettings, old: RunLock) -> None:
    """Checks that there is something to change, and that it may begin there."""
    denies = amendment.denied is not None or bool(amendment.denied_documents)
    if not (amendment.has_stage or amendment.sources or denies or amendment.grows):
        message = "expected a change: a stage, sources, documents to deny, or new data to take up; found none"
        raise ConfigError(message, hint="such as `--weights web=5,code=5`")
    if settings.content_sha256 != old.content_sha256 and not amendment.grows:
        message = f"expected `{settings.path}` as it was locked, found it changed since"
        raise ConfigError(message, hint="lock it first: `tokenloom run lock`; new data are taken up with --grow, too")
    if amendment.position < old.consumed:
        message = f"training has read the {old.consumed} positions before {old.consumed}, found a change at "
        message += f"{amendment.position}"
        hint = f"name position {old.consumed} or a later one; after going back to an earlier checkpoint, say so first: "
        hint += "`tokenloom run lock --consumed-samples N --drop consumed`"
        raise ConfigError(message, hint=hint)
    if (end := old.num_samples) is not None and amendment.position > end:
        message = f"expected a position in the run, up to {end}, found {amendment.position}"
        raise ConfigError(message)


def _check_growth(amendment: Amendment, locked: LockedRun) -> None:
    """Checks that new data are taken up where that was asked for, and nowhere else."""
    assert locked.old is not None
    changes = lock_changes(locked.old, locked.lock)
    grown = [(each.name, each.pairs[0].prefix) for each in changes.new_data if each.name not in changes.new_sources]
    if amendment.grows and not grown:
        message = "expected new pairs in `data` of a source, found none that the lock does not have"
        raise ConfigError(message, hint="write them where `data` of a source finds them, or change `data`")
    if grown and not amendment.grows:
        name, prefix = grown[0]
        message = f"expected no new pairs, found `{prefix}` in `data` of source {name!r}, which the lock does not have"
        raise ConfigError(message, hint="take it up from this position on with --grow, or move it away")


def _new_sources(amendment: Amendment, settings: RunSettings) -> Iterator[SourceSettings]:
    for name, data in (amendment.sources or {}).items():
        if name in [source.name for source in settings.sources]:
            message = f"`{settings.path}` has a source {name!r} already"
            raise ConfigError(message, hint="choose another name")
        yield SourceSettings(name=name, data=(from_folder(data, settings.folder),))


def _new_denials(amendment: Amendment, settings: RunSettings) -> Iterator[DenialSettings]:
    start, reason = amendment.position, amendment.reason
    if amendment.denied is not None:
        yield DenialSettings(start=start, file=from_folder(amendment.denied, settings.folder), reason=reason)
    names = [source.name for source in settings.sources]
    if found := sorted({parse_name(document, names) for document in amendment.denied_documents}):
        yield DenialSettings(start=start, documents=tuple(found), reason=reason)


def _with_stage(settings: RunSettings, amendment: Amendment, old: RunLock) -> tuple[StageSettings, ...]:
    """Returns the stages with one that begins at the position of an amendment."""
    path, stages, position = settings.path, list(settings.stages), amendment.position
    segment = next(each for each in reversed(old.segments) if each.start < position or each.start == 0)
    number = next((number for number, stage in enumerate(stages) if stage.name == segment.stage), None)
    if number is None:
        message = f"the lock has a stage {segment.stage!r}, which `{path}` has not"
        raise ConfigError(message, hint=f"lock it first: tokenloom run lock {path}")
    current = stages[number]
    start = min(each.start for each in old.segments if each.stage == current.name)
    following = [each.start for each in old.segments if each.start >= position and each.stage != current.name]
    end = following[0] if following else old.num_samples
    weights = current.weights or tuple((old.sources[each].name, Fraction(weight)) for each, weight in segment.weights)
    left = None
    if position == end and not following:
        if amendment.tokens is None and amendment.samples is None:
            message = f"expected a size for a stage behind the end of the run, position {position}, found none"
            raise ConfigError(message, hint="such as `--tokens 50B`")
    elif position in (start, end):
        name = current.name if position == start else next(each.stage for each in old.segments if each.start == end)
        message = f"expected a position within a stage, found {position}, the first of stage {name!r}"
        hint = f"nothing of that stage was read: change it in `{path}`, and lock with --consumed-samples {position}"
        raise ConfigError(message, hint=hint)
    else:
        left = None if end is None else end - position
        stages[number] = replace(current, tokens=None, samples=position - start, passes=None, weights=weights)
    length = amendment.sequence_length or current.sequence_length
    tokens, samples = amendment.tokens, amendment.samples
    if tokens is None and samples is None and left is not None:
        samples = left if length == current.sequence_length else None
        tokens = left * current.sequence_length if samples is None else None
    new = StageSettings(
        name=amendment.stage_name or f"from {position}",
        sequence_length=length,
        tokens=tokens,
        samples=samples,
        weights=_given_weights(amendment, settings) or weights,
        on_exhausted=current.on_exhausted,
    )
    return (*stages[: number + 1], new, *stages[number + 1 :])


def _given_weights(amendment: Amendment, settings: RunSettings) -> Shares:
    names = [source.name for source in settings.sources]
    given = dict(amendment.weights)
    for name in given:
        if name not in names:
            message = f"expected weights of sources of the run, found one of {name!r}"
            hint = did_you_mean(name, names) or "add it with `--add-source NAME=DATA`"
            raise ConfigError(message, hint=hint)
    shares = tuple((name, given[name]) for name in names if given.get(name))
    if given and not shares:
        message = "expected a weight above 0, found only 0"
        raise ConfigError(message)
    return shares


AHEAD = 1 << 20
"""Positions of a run without an end whose changes are listed."""

Documents = Mapping[int, NDArray[np.int64]]
"""Documents by number of their source, rising."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Denied:
    """What a denial came to.

    Attributes:
        amended: the edit and the locks.
        documents: all documents that it names.
        again: those of them that were denied already, at its position or before.
        held_out: those of them that are held out: training never reads them, and they are padding in what is held out.
        empty_records: names of records that gave no document.
        changed: the spans that become padding, before `stop`.
        stop: where the listing ends: at the end of the run, if it has one.
        seen: the spans before the position, which training has read or is going to; None if that was not asked.
        digests: digest of the order before the position, by the lock before and by the new one.
        order_digests: digest of the order before `stop` without any denials, likewise.
    """

    amended: Amended
    documents: Documents
    again: Documents
    held_out: Documents
    empty_records: tuple[str, ...]
    changed: SpanTable
    stop: int
    seen: SpanTable | None
    digests: tuple[str, str]
    order_digests: tuple[str, str]

    @property
    def nothing_else_moved(self) -> bool:
        """Whether both digests are what they were."""
        return self.digests[0] == self.digests[1] and self.order_digests[0] == self.order_digests[1]


def deny_documents(
    path: str | os.PathLike[str],
    denial: Amendment,
    *,
    until: int | None = None,
    since_start: bool = False,
    reading: Reading | None = None,
    write: bool = True,
) -> Denied:
    """Denies documents from a position on: adds a `[[denied]]` to `run.toml`, and locks the run anew.

    Args:
        path: path of `run.toml`; its lock lies beside it.
        denial: which documents, and from where on; nothing else is changed.
        until: where the listing of changes ends; None for the end of the run, or a million positions of an endless one.
        since_start: whether to tell where the documents are read before the position.
        reading: how to read data.
        write: whether to write both files; else only to see what would change.

    Raises:
        ConfigError: nothing is named, there is no such document or record, records gave no document, nothing would be
            left of a source that is read on, or the position was consumed; both files are as they were.
        OutputBusyError, DatasetNotFoundError, DatasetFormatError: see `amend_run`.
    """
    path = os.fspath(path)
    if denial.has_stage or denial.sources or denial.grows:
        message = f"expected documents to deny alone, found other changes beside them: {denial}"
        raise ConfigError(message, hint="make those with `amend_run`")
    reading = Reading() if reading is None else reading
    amended = amend_run(path, denial, reading=reading, write=write, check=_check_denies)
    documents = _added(amended)
    old, new = amended.locked.old, amended.locked.lock
    assert old is not None
    run, position = Run(path, new, reading=reading), denial.position
    stop = _stop(run, position, until)
    changed = run.occurrences(documents, start=position, stop=stop)
    seen = run.occurrences(documents, stop=position) if since_start else None
    bare_old, bare_new = replace(old, denials=()), replace(new, denials=())
    return Denied(
        amended=amended,
        documents=documents,
        again=_some(documents, lambda source, chosen: denied_from(old, source, chosen) <= position),
        held_out=_some(documents, lambda source, chosen: are_held_out(new, source, chosen)),
        empty_records=amended.locked.empty_records,
        changed=changed.take(changed.denied & ~_denied_by(old, changed)),
        stop=stop,
        seen=None if seen is None else seen.take(~seen.denied),
        digests=(order_digest(old, position), order_digest(new, position)),
        order_digests=(order_digest(bare_old, stop), order_digest(bare_new, stop)),
    )


def _check_denies(amended: Amended) -> None:
    """Checks that an amendment denies a document that was not denied so before."""
    if not _added(amended):
        records = ", ".join(amended.locked.empty_records[:3])
        message = f"expected documents to deny, found none: {records or 'the list is empty'}"
        hint = "records that were blank, bad or duplicates gave no document, or went into other data"
        raise ConfigError(message, hint=hint if records else None)


def _added(amended: Amended) -> dict[int, NDArray[np.int64]]:
    """Returns the documents of the denials that a lock has more than the one before."""
    assert amended.locked.old is not None
    added = Counter(amended.locked.lock.denials) - Counter(amended.locked.old.denials)
    found: dict[int, set[int]] = {}
    for denial in added:
        for source, documents in denial.documents:
            found.setdefault(source, set()).update(documents)
    return {source: np.array(sorted(documents), dtype=np.int64) for source, documents in sorted(found.items())}


def _stop(run: Run, position: int, until: int | None) -> int:
    """Returns where the listing of changes ends."""
    if until is not None and until < position:
        message = f"expected to list changes up to position {position} or a later one, found {until}"
        raise ConfigError(message)
    end = run.num_samples
    if until is None:
        return position + AHEAD if end is None else end
    return until if end is None else min(until, end)


def _some(
    documents: Documents, which: Callable[[int, NDArray[np.int64]], NDArray[np.bool_]]
) -> dict[int, NDArray[np.int64]]:
    """Returns some of the documents; no sources without any."""
    found = {source: chosen[which(source, chosen)] for source, chosen in documents.items()}
    return {source: chosen for source, chosen in found.items() if len(chosen)}


def _denied_by(lock: RunLock, table: SpanTable) -> NDArray[np.bool_]:
    """Returns which spans a lock denies."""
    denied = np.zeros(len(table), dtype=np.bool_)
    for source in np.unique(table.sources).tolist():
        own = table.sources == source
        denied[own] = table.positions[own] >= denied_from(lock, source, table.documents[own])
    return denied
