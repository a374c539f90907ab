"""Excluding other writers of a group of files, and putting in order what a dead one left; see `storage/publishing`."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import time
from contextlib import suppress
from typing import Self

from tokenloom.errors import OutputBusyError, StorageError
from tokenloom.machine import is_running
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import remove_pending, storage_errors
from tokenloom.storage.cleaning import remove_leftover
from tokenloom.storage.filesystem import identity_at, lock
from tokenloom.storage.journal import Journal, finish, hidden_path, journal_path, read_journal, undo
from tokenloom.storage.locks import close_lock, is_file_at, open_for_lock, write_at

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
