"""Groups of files that appear together, or not at all; what they replace stays whole until all of them are there.

Several renames are not one step, so a journal beside the group says what is being done:

1. all new files are complete, and durable if they are meant to be, under no name;
2. the journal `.NAME.replacing` appears, with the inodes of the new files and hidden names for the old ones;
3. the old key file (the index of a pair, without which nothing opens the others) gets its hidden name, then the others;
4. the new files get their names, the key file last: from this moment the new group counts;
5. the old files go, then the journal.

Of several groups that appear together all take a step before any takes the next, the first one first in 2 and 3, and
last in 4 and 5: all of them count from the moment on in which its key file has its name, as their journals say.

A failure on the way is undone in the same process. After a death between 2 and 5, whoever writes or opens the group
next finishes what was complete, or puts the old files back (`output_lock.recover`). So a reader, of whatever kind,
finds the old group, no group, or the new one, and never files of both. NAME is that of the key file.

Writers of one group exclude each other by a lock, `.NAME.lock`, which dies with its holder (`OutputLock`).
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from tokenloom.errors import OutputExistsError, StorageError
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import (
    Pending,
    publish_bytes,
    storage_errors,
    sync_folder,
)
from tokenloom.storage.journal import (
    Journal,
    canonical_name,
    finish,
    hidden_path,
    journal_path,
    other_folders,
    read_journal,
    undo,
    withdraw,
    write_journal,
)
from tokenloom.storage.output_lock import OutputLock
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that belong together.

    Attributes:
        key: path of the file without which the others are not opened.
        files: the new ones, written and without names; that of the key is the last one.
        names: paths of all files that the group may have: what is there under one of them goes with the old group.
    """

    key: str
    files: Sequence[Pending]
    names: Sequence[str]


def publish_together(
    groups: Sequence[FileGroup], *, replace: bool, durable: bool = True, locked: Collection[str] = ()
) -> None:
    """Makes the files of all groups appear, and what they replace disappear; when that fails, undoes all of it.

    A death leaves all groups old, or all new. In object storage, which has no renames, files appear one after the
    other.

    Args:
        groups: local ones.
        replace: whether files of these names may be replaced.
        durable: whether the names survive a loss of power.
        locked: keys of the groups whose locks the caller holds; that of the first is among them. Others are locked
            until their journals, which exclude other writers too, are there.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputBusyError: another process writes one of them.
        StorageError: writing failed; the old files are back.
    """
    for file in (file for group in groups for file in group.files):
        file.sync()
    if not groups:
        return
    exchanges = [_Exchange(group, groups, replace=replace, durable=durable) for group in groups]
    first, others = exchanges[0], exchanges[1:]
    try:
        for exchange in exchanges:
            with nullcontext() if exchange.key in locked else OutputLock(exchange.key):
                exchange.begin()
        for exchange in (*others, first):
            exchange.complete()
    except BaseException as error:
        _undo_all(exchanges, error)
        raise
    try:
        _finish_all(exchanges)
    except OSError as failure:  # the new files are there: what is left of the old ones costs space only
        _LOGGER.warning("the files that were replaced at `%s` remain: %s", first.key, failure)
    except BaseException as error:  # an interruption comes too late
        error.add_note(f"`{first.key}` was complete already")
        with suppress(OSError):
            _finish_all(exchanges)
        raise


def _finish_all(exchanges: Sequence[_Exchange]) -> None:
    for exchange in (*exchanges[1:], exchanges[0]):
        exchange.finish()


def _undo_all(exchanges: Sequence[_Exchange], error: BaseException) -> None:
    first, others = exchanges[0], exchanges[1:]
    try:
        first.withdraw()
    except OSError as failure:  # then the others must not be undone: all of them are old, or all are new
        error.add_note(f"what was replaced is not back yet, but will be when it is next opened: {failure}")
        return
    for exchange in (*reversed(others), first):  # the journal of the first tells what the others are to become
        try:
            exchange.undo()
        except OSError as failure:
            error.add_note(f"what `{exchange.key}` replaced may not be back yet: opening it sees to that: {failure}")


class _Exchange:
    """One group on its way from the old files to the new ones, together with others."""

    def __init__(self, group: FileGroup, together: Sequence[FileGroup], *, replace: bool, durable: bool) -> None:
        self.key = group.key
        self._group = group
        self._together = together
        self._replace = replace
        self._durable = durable
        self._journal = journal_path(group.key)
        self._has_begun = False

    def begin(self) -> None:
        """Writes the journal, and puts the old files aside."""
        with storage_errors("replace", self.key):
            self._begin()

    def _begin(self) -> None:
        names = [self.key, *self._group.names, *(file.path for file in self._group.files)]
        known: dict[str, str] = {}
        for path in names:  # one may be spelled in several ways; the key goes first
            known.setdefault(canonical_name(path), path)
        old = [path for path in known.values() if os.path.lexists(path)]
        for path in old:
            if os.path.isdir(path):
                message = f"cannot replace `{path}`: it is a folder"
                raise StorageError(message, hint="move it away, or choose another output")
        if old and not self._replace:
            raise exists_error(old[0])
        token = secrets.token_hex(4)
        first = self._together[0]
        journal = Journal(
            key=self.key,
            old={path: hidden_path(path, f"{token}.old") for path in old},
            new={file.path: file.identity() for file in self._group.files},
            first={first.key: first.files[-1].identity()},
            others=tuple(group.key for group in self._together[1:]) if first is self._group else (),
        )
        self._has_begun = True
        write_journal(self._journal, journal, durable=self._durable)
        for path, hidden in journal.old.items():
            os.rename(path, hidden)
            if path == self.key and self._durable and other_folders(self.key, names):
                sync_folder(os.path.dirname(self.key) or ".")  # before anything changes in another folder

    def complete(self) -> None:
        """Gives the new files their names."""
        for file in self._group.files[:-1]:
            file.place()
        self._sync_folders()
        self._group.files[-1].place()
        self._sync_folders()

    def withdraw(self) -> None:
        """Takes the name of the key file back, if it has it."""
        if self._has_begun and (journal := read_journal(self._journal)) is not None:
            withdraw(journal)

    def undo(self) -> None:
        """Puts the old files back."""
        for file in self._group.files:
            file.discard()
        if self._has_begun:
            undo(self._journal)

    def finish(self) -> None:
        """Removes the old files."""
        finish(self._journal)

    def _sync_folders(self) -> None:
        if self._durable:
            for folder in dict.fromkeys(os.path.dirname(file.path) or "." for file in self._group.files):
                sync_folder(folder)


def make_folder_of(path: str) -> None:
    """Makes the folder that an output is to lie in, where there is none; a store has no folders.

    Raises:
        StorageError: it cannot be made.
    """
    if not is_remote(path):
        with storage_errors("make the folder of", path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def write_report(path: str, data: bytes, *, overwrite: bool) -> bool:
    """Writes a file that a person asked for, whole; False if it holds these bytes already.

    Raises:
        OutputExistsError: it holds others, and is not to be replaced.
        StorageError: it cannot be written.
    """
    if os.path.lexists(path):
        with storage_errors("open", path), open(open_regular(path), "rb") as stream:
            if stream.read(len(data) + 1) == data:
                return False
        if not overwrite:
            raise exists_error(path)
    make_folder_of(path)
    publish_bytes(path, data, durable=True)
    return True


def exists_error(path: str) -> OutputExistsError:
    """Returns the error for an output that is there and is not to be replaced."""
    message = f"`{path}` exists, and was not made by this very job"
    return OutputExistsError(message, hint="choose another output, or replace it with `overwrite=True`")
