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
next finishes what was complete, or puts the old files back (`recover`). So a reader, of whatever kind, finds the old
group, no group, or the new one, and never files of both. NAME is that of the key file.

Writers of one group exclude each other by a lock, `.NAME.lock`, which dies with its holder (`OutputLock`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Self

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.machine import is_running
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import (
    Pending,
    identity_at,
    publish_bytes,
    remove_pending,
    storage_errors,
    sync_folder,
)
from tokenloom.storage.journal import (
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
from tokenloom.storage.locks import close_lock, is_file_at, open_for_lock, write_at
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""Of a reader that meets a group while it is being replaced, which takes some renames."""
_LOOK_SECONDS = 0.02
_OWNER_BYTES = 200
_MOST_ATTEMPTS = 100
"""To take a lock: each fails only because somebody else let it go at that very moment."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


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
    except BaseException:  # an interruption comes too late
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
        content: dict[str, Any] = {
            "key": self.key,
            "old": {path: hidden_path(path, f"{token}.old") for path in old},
            "new": {file.path: file.identity() for file in self._group.files},
            "first": {first.key: first.files[-1].identity()},
            "others": [group.key for group in self._together[1:]] if first is self._group else [],
        }
        self._has_begun = True
        write_journal(self._journal, content, durable=self._durable)
        for path, hidden in content["old"].items():
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
        if self._has_begun and (content := read_journal(self._journal)) is not None:
            withdraw(content)

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
    while os.path.lexists(journal_path(key)):
        try:
            OutputLock(key).release()  # which recovers
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
            OutputLock(key).release()


class OutputLock:
    """Excludes other writers of a group until it is released; first recovers what a dead one left.

    Where a filesystem has no locks this is logged, and nothing is excluded; nor is it in object storage. Released by
    garbage collection too, and never by a fork.

    Args:
        key: path of the file that is last to appear.

    Attributes:
        key: the same.

    Raises:
        OutputBusyError: another process, or another writer of this one, is at it.
        StorageError: the folder cannot be written.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._owner = os.getpid()
        self._path = hidden_path(key, "lock")
        self._descriptor = None if is_remote(key) else _acquire(self._path, key)
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
    publish_bytes(path, data, durable=True)
    return True


def exists_error(path: str) -> OutputExistsError:
    """Returns the error for an output that is there and is not to be replaced."""
    message = f"`{path}` exists, and was not made by this very job"
    return OutputExistsError(message, hint="choose another output, or replace it: `--overwrite`, `overwrite=True`")


def _acquire(path: str, key: str) -> int | None:
    """Returns the descriptor of a lock that is held from now on; None where the filesystem has none."""
    for _ in range(_MOST_ATTEMPTS):
        with storage_errors("create", key):
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        is_held = False
        try:
            if not _is_locked(descriptor, path, key):
                close_lock(descriptor)
                return None
            is_held = True
            with storage_errors("lock", path):
                is_ours = is_file_at(descriptor, path)
            if is_ours:
                _remove_pending_of(_owner(descriptor), key)
                with suppress(OSError):  # for messages only; the disk may be full
                    os.ftruncate(descriptor, 0)
                    write_at(descriptor, memoryview(f"process {os.getpid()} on {socket.gethostname()}".encode()), 0)
                return descriptor
        except BaseException:  # an interruption, too
            with suppress(OSError):
                if is_held and is_file_at(descriptor, path):
                    os.unlink(path)
            close_lock(descriptor)
            raise
        close_lock(descriptor)
    message = f"cannot lock `{path}`: others come and go"
    raise StorageError(message, hint="try again")


def _is_locked(descriptor: int, path: str, key: str) -> bool:
    """Locks an open file; False where the filesystem has no locks.

    Raises:
        OutputBusyError: somebody else holds it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"`{key}` is being written by {_owner(descriptor)}"
        raise OutputBusyError(message, hint="wait for its end, or choose another output") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            with storage_errors("lock", path):
                raise
        _LOGGER.warning("the filesystem of `%s` has no locks: nothing keeps other writers away", key)
        return False
    return True


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
    if (content := read_journal(journal_path(key))) is None:
        return
    [first] = content["first"]
    if content["is_first"]:
        for other in content["others"]:
            found = read_journal(journal_path(other))
            if found is not None and list(found["first"].values()) == list(content["first"].values()):
                _take_side(other, found)
        _take_side(key, content)
        return
    with OutputLock(first):  # which settles this one
        content = read_journal(journal_path(key))
        if content is not None and first in content["first"]:  # somebody removed what the first left
            _take_side(key, content)


def _take_side(key: str, content: dict[str, Any]) -> None:
    [(first, identity)] = content["first"].items()
    if identity_at(first) == tuple(identity):
        _LOGGER.info("`%s` was replaced as a process ended; what it replaced is removed", key)
        finish(journal_path(key))
    else:
        _LOGGER.warning("a process ended while it replaced `%s`; the old files are put back", key)
        undo(journal_path(key))
