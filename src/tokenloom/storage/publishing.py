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
next finishes what was complete, or puts the old files back (`recover`). So a reader, of whatever kind,
finds the old group, no group, or the new one, and never files of both. NAME is that of the key file.

Writers of one group exclude each other by a lock, `.NAME.lock`, which dies with its holder (`OutputLock`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Self

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.machine import is_running
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import (
    PendingFile,
    PendingLink,
    identity_at,
    publish_bytes,
    remove_leftover,
    remove_pending,
    storage_errors,
    sync_folder,
)
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.locks import close_lock, is_file_at, lock, open_for_lock, write_at
from tokenloom.storage.typed_json import from_members, members_of
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""How long a reader waits that meets a group while it is being replaced, which takes some renames."""
_LOOK_SECONDS = 0.02
_BRIEF_SECONDS = 5.0
"""How long a writer waits for somebody who only puts things in order, which takes some renames."""
_BRIEFLY = ", briefly"
_OWNER_BYTES = 200
_MOST_ATTEMPTS = 100
"""Attempts to take a lock: each fails only because somebody else let it go at that very moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that belong together.

    Attributes:
        key: path of the file without which the others are not opened.
        files: the new ones, written and without names; that of the key is the last one.
        names: paths of all files that the group may have: what is there under one of them goes with the old group.
    """

    key: str
    files: Sequence[PendingFile | PendingLink]
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
        journal = read_journal(self._journal) if self._has_begun else None
        if journal is not None and identity_at(journal.key) == journal.new.get(journal.key, ()):
            remove_file(journal.key)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What is being done to a group.

    Attributes:
        key: path of its key file.
        old: where each file that was there is put aside, by its path.
        new: device and inode of each new file, by its path.
        first: device and inode of the key file of the first of the groups that appear together, by its path.
        others: key files of the other groups, in the journal of the first.
    """

    key: str
    old: Mapping[str, str]
    new: Mapping[str, tuple[int, ...]]
    first: Mapping[str, tuple[int, ...]]
    others: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """Whether it is that of the first group."""
        return list(self.first) == [self.key]

    def renamed(self, rename: Callable[[str], str]) -> Journal:
        """Returns the same with other paths."""
        return Journal(
            key=rename(self.key),
            old={rename(name): rename(kept) for name, kept in self.old.items()},
            new={rename(name): identity for name, identity in self.new.items()},
            first={rename(name): identity for name, identity in self.first.items()},
            others=tuple(map(rename, self.others)),
        )


def journal_path(key: str) -> str:
    """Returns where the journal of a group is while it is being replaced."""
    return hidden_path(key, "replacing")


def finish(path: str) -> None:
    """Removes the old files; can be repeated wherever it ended."""
    journal = read_journal(path)
    if journal is not None:
        if others := other_folders(journal.key, journal.old.values()):
            sync_folder(os.path.dirname(journal.key) or ".")  # the new key, before what it replaced goes for ever
        for hidden in journal.old.values():
            remove_file(hidden)
        for folder in others:
            sync_folder(folder)
    remove_file(path)


def undo(path: str) -> None:
    """Removes what is new and puts back what is old, the key last; can be repeated wherever it ended.

    A folder that cannot be synced, as on a full disk, keeps no name from being put back: the journal then stays.

    Raises:
        StorageError: a name could not be put back, or a folder not be synced.
    """
    journal = read_journal(path)
    if journal is None:
        return
    failures: list[OSError] = []

    def sync(folder: str) -> None:
        try:
            sync_folder(folder)
        except OSError as failure:
            failures.append(failure)

    key, old = journal.key, journal.old
    home, others = os.path.dirname(key) or ".", other_folders(key, [*journal.new, *old])
    for name, identity in sorted(journal.new.items(), key=lambda item: item[0] != key):
        if identity_at(name) == identity:
            remove_file(name)
        if name == key and others:
            sync(home)
    for name in sorted(old, key=lambda name: name == key):
        if name == key:
            for folder in others:
                sync(folder)
        if os.path.lexists(old[name]):
            os.rename(old[name], name)
    for folder in (*others, home):
        sync(folder)
    if failures:
        raise failures[0]
    remove_file(path)


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of files that are not beside the key.

    After a loss of power filesystems keep the order in which names changed in one folder, and not that between two:
    what must come first in another folder must be synced first.
    """
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def write_journal(path: str, journal: Journal, *, durable: bool) -> None:
    """Writes a journal, with paths as they lead on from its folder: others see it under another path."""
    folder = os.path.dirname(path) or "."
    relative = journal.renamed(lambda name: _relative(name, folder))
    publish_bytes(path, json.dumps(members_of(relative)).encode(), durable=durable)


def _relative(path: str, folder: str) -> str:
    """Returns a path as it leads on from a folder, whichever links lead to both."""
    beside, name = os.path.split(path)
    return name if (beside or ".") == folder else os.path.relpath(canonical_name(path), os.path.realpath(folder))


def canonical_name(path: str) -> str:
    """Returns the one path of a name in a folder, without links on the way; the name itself may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def read_journal(path: str) -> Journal | None:
    """Returns what a journal says, with whole paths; None if there is none.

    Raises:
        StorageError: it is damaged.
    """
    folder = os.path.dirname(path)
    try:
        with open(path, "rb") as stream:
            found = from_members(Journal, parse_json(stream.read()))
    except FileNotFoundError:
        return None
    except UnusableJsonError as error:
        message = f"`{path}` is damaged: {str(error).removeprefix(': ')}"
        raise StorageError(message, hint="it names files that were being replaced; look beside it") from error
    return found.renamed(lambda name: os.path.join(folder, name))


def hidden_path(path: str, suffix: str) -> str:
    """Returns a hidden path beside another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


def remove_file(path: str) -> None:
    """Removes a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def recover(key: str) -> bool:
    """Brings a group to one side that a process left between old and new; whether there was anything to do.

    Costs one look where nothing is to be done. While a living process replaces the group, waits for it.

    Args:
        key: path of the file that is last to appear; of local files.

    Raises:
        StorageError: the folder cannot be written, or the group stays between the two for long.
    """
    if is_remote(key) or not os.path.lexists(journal_path(key)):
        return False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with waiting_for(f"`{key}`, which another process replaces"):
        while os.path.lexists(journal_path(key)):
            try:
                OutputLock(key, is_brief=True).release()  # which recovers
            except OutputBusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
            except StorageError as error:
                message = f"a process ended while it replaced `{key}`, and what it left cannot be put in order: {error}"
                raise StorageError(message, hint="open it once where its folder can be written") from error
    return True


def tidy(key: str) -> None:
    """Does what `recover` does, and removes what else a dead writer left; for writers, before they look what is there.

    Nothing happens while a living process writes the group.
    """
    if not is_remote(key) and (os.path.lexists(journal_path(key)) or os.path.lexists(hidden_path(key, "lock"))):
        with suppress(OutputBusyError):
            OutputLock(key, is_brief=True).release()


class OutputLock:
    """Excludes other writers of a group until it is released; first recovers what a dead one left.

    Where a filesystem has no locks this is logged, and nothing is excluded; nor is it in object storage. Released by
    garbage collection too, and never by a fork.

    Args:
        key: path of the file that is last to appear.
        is_brief: whether it is held only to put things in order: writers then wait for it instead of giving up.

    Attributes:
        key: path of the file that is last to appear.

    Raises:
        OutputBusyError: another process, or another writer of this one, is at it.
        StorageError: the folder cannot be written.
    """

    def __init__(self, key: str, *, is_brief: bool = False) -> None:
        self.key = key
        self._owner = os.getpid()
        self._path = hidden_path(key, "lock")
        self._descriptor = None if is_remote(key) else _acquire(self._path, key, is_brief=is_brief)
        if not is_remote(key):
            try:
                with storage_errors("recover", key):
                    _settle(key)
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Lets others write; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._owner:
            return
        try:
            with suppress(OSError):
                if is_file_at(descriptor, self._path):
                    os.unlink(self._path)
        finally:  # also after an interruption
            close_lock(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.release()


def _acquire(path: str, key: str, *, is_brief: bool) -> int | None:
    """Returns the descriptor of a lock that is held from now on; None where the filesystem has none."""
    deadline = time.monotonic() + _BRIEF_SECONDS
    num_attempts = 0
    while num_attempts < _MOST_ATTEMPTS:
        with storage_errors("create", key):
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        is_held = False
        try:
            if not _is_locked(descriptor, path, key):
                close_lock(descriptor)
                remove_leftover(path)
                return None
            is_held = True
            with storage_errors("lock", path):
                is_ours = is_file_at(descriptor, path)
            if is_ours:
                _remove_pending_of(_owner(descriptor), key)
                with suppress(OSError):  # for messages only; the disk may be full
                    os.ftruncate(descriptor, 0)
                    owner = f"process {os.getpid()} on {socket.gethostname()}" + (_BRIEFLY if is_brief else "")
                    write_at(descriptor, memoryview(owner.encode()), 0)
                return descriptor
        except OutputBusyError:
            waits = not is_brief and _is_brief(descriptor) and time.monotonic() < deadline
            close_lock(descriptor)
            if not waits:
                raise
            time.sleep(_LOOK_SECONDS)
            continue
        except BaseException:  # an interruption, too
            with suppress(OSError):
                if is_held and is_file_at(descriptor, path):
                    os.unlink(path)
            close_lock(descriptor)
            raise
        close_lock(descriptor)
        num_attempts += 1
    message = f"cannot lock `{path}`: others come and go"
    raise StorageError(message, hint="try again")


def _is_locked(descriptor: int, path: str, key: str) -> bool:
    """Locks an open file; False where the filesystem has no locks.

    Raises:
        OutputBusyError: somebody else holds it.
    """
    try:
        is_locked = lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"`{key}` is being written by {_owner(descriptor)}"
        raise OutputBusyError(message, hint="wait for its end, or choose another output") from error
    except OSError:
        with storage_errors("lock", path):
            raise
    if not is_locked:
        _LOGGER.warning("the filesystem of `%s` has no locks: nothing keeps other writers away", key)
    return is_locked


def _is_brief(descriptor: int) -> bool:
    """Whether a lock is held by somebody who will let it go at once, or who has not said yet who holds it."""
    with suppress(OSError):
        return (said := os.pread(descriptor, _OWNER_BYTES, 0)) == b"" or said.endswith(_BRIEFLY.encode())
    return False


def _remove_pending_of(owner: str, key: str) -> None:
    """Removes the files with hidden names of the process that held a lock when it died, on this machine."""
    found = re.fullmatch(rf"process ([0-9]+) on {re.escape(socket.gethostname())}", owner)
    if found is not None and not is_running(int(found[1])):
        with suppress(OSError):  # they cost space only, and the lock is what counts
            remove_pending([os.path.splitext(key)[0] + "."], process=found[1])


def _owner(descriptor: int) -> str:
    """Returns who holds a lock, in words."""
    with suppress(OSError):
        return os.pread(descriptor, _OWNER_BYTES, 0).decode("utf-8", "replace") or "another process"
    return "another process"


def _settle(key: str) -> None:
    """Finishes or undoes what a dead process left; the caller holds the lock.

    Groups that were to appear together go the same way: to the side on which the first of them is, whose lock excludes
    whoever is at work on any of them.
    """
    if (journal := read_journal(journal_path(key))) is None:
        return
    [first] = journal.first
    if journal.is_first:
        for other in journal.others:
            found = read_journal(journal_path(other))
            if found is not None and list(found.first.values()) == list(journal.first.values()):
                _take_side(other, found)
        _take_side(key, journal)
        return
    with OutputLock(first):  # which settles this one
        found = read_journal(journal_path(key))
        if found is not None and first in found.first:  # somebody removed what the first left
            _take_side(key, found)


def _take_side(key: str, journal: Journal) -> None:
    [(first, identity)] = journal.first.items()
    if identity_at(first) == identity:
        _LOGGER.info("`%s` was replaced as a process ended; what it replaced is removed", key)
        finish(journal_path(key))
    else:
        _LOGGER.warning("a process ended while it replaced `%s`; the old files are put back", key)
        undo(journal_path(key))


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
