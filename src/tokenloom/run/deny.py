"""Taking documents out of a run from a position on, and saying exactly what that changes.

What is denied becomes padding without loss. All else stays where it is, which is shown by digests: of the order before
the position, and of the whole order without its denials.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amended, Amendment, amend_run
from tokenloom.run.audit.occurrences import denied_from
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.digest import order_digest
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import RunLock, lock_path, read_lock
from tokenloom.run.members import Reading
from tokenloom.run.run import Run

AHEAD = 1 << 20
"""Positions of a run without an end whose changes are listed."""

Documents = Mapping[int, NDArray[np.int64]]
"""Documents by number of their source, rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """What is to be denied.

    Attributes:
        position: the first position at which it is padding.
        documents: names of documents and records.
        file: a file that lists such names; None for none.
        reason: why, in words; None for no word.
    """

    position: int
    documents: tuple[str, ...] = ()
    file: str | None = None
    reason: str | None = None


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
    denial: Denial,
    *,
    until: int | None = None,
    since_start: bool = False,
    reading: Reading | None = None,
    write: bool = True,
) -> Denied:
    """Denies documents from a position on: adds a `[[denied]]` to `run.toml`, and locks the run anew.

    Args:
        path: path of `run.toml`; its lock lies beside it.
        denial: which documents, and from where on.
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
    reading = Reading() if reading is None else reading
    if not denial.documents and denial.file is None:
        message = "expected documents to deny, found none"
        raise ConfigError(message, hint="name documents such as `web:12345`, or a file that lists them")
    _check_computed(path)
    amendment = Amendment(
        position=denial.position, denied=denial.file, denied_documents=denial.documents, reason=denial.reason
    )
    planned = amend_run(path, amendment, reading=reading, write=False)
    documents = _added(planned)
    if not documents:
        records = ", ".join(planned.locked.empty_records[:3])
        message = f"expected documents to deny, found none: {records or 'the list is empty'}"
        hint = (
            "records that were blank, bad or duplicates gave no document, or went into other data" if records else None
        )
        raise ConfigError(message, hint=hint)
    amended = amend_run(path, amendment, reading=reading) if write else planned
    old, new = amended.locked.old, amended.locked.lock
    assert old is not None
    run, position = Run(path, new, reading=reading), denial.position
    stop = _stop(run, position, until)
    changed = run.occurrences(documents, start=position, stop=stop)
    bare_old, bare_new = replace(old, denials=()), replace(new, denials=())
    return Denied(
        amended=amended,
        documents=documents,
        again=_some(documents, lambda source, chosen: denied_from(old, source, chosen) <= position),
        held_out=_some(documents, lambda source, chosen: are_held_out(new, source, chosen)),
        empty_records=amended.locked.empty_records,
        changed=changed.take(changed.denied & ~_denied_by(old, changed)),
        stop=stop,
        seen=_not_denied(run.occurrences(documents, stop=position)) if since_start else None,
        digests=(order_digest(old, position), order_digest(new, position)),
        order_digests=(order_digest(bare_old, stop), order_digest(bare_new, stop)),
    )


def _check_computed(path: str) -> None:
    if read_lock(lock_path(path)).is_megatron:
        message = f'expected a run whose order is computed for a denial, found `order = "megatron"` in `{path}`'
        raise ConfigError(message, hint="that order is built and cached, and cannot change; write `order = 1` for that")


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
    """Returns where the listing of changes ends.

    Raises:
        ConfigError: that is before the denial begins.
    """
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


def _not_denied(table: SpanTable) -> SpanTable:
    return table.take(~table.denied)
