"""Files that processes of a node fill once and share, under locks that die with their holder."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenloom import progress
from tokenloom.storage.atomic import remove_leftover

_LOGGER = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What filesystems answer that have no locks, such as Lustre without `-o flock`."""

_PAUSE_SECONDS = 0.2

_OPEN: set[int] = set()
"""Descriptors that hold or await locks. A forked child closes its copies, or it would hold what its parent lets go."""


def _close_copies() -> None:
    for descriptor in _OPEN:
        with suppress(OSError):
            os.close(descriptor)
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_copies)


def lock(descriptor: int, operation: int) -> bool:
    """Locks or unlocks an open file by `flock`; returns False where the filesystem has no locks.

    Raises:
        BlockingIOError: somebody else holds it, and `operation` does not wait.
        OSError: another failure.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def open_for_lock(path: str, flags: int) -> int:
    """Returns a descriptor that can be locked; never follows a link. `close_lock` gives up the lock and closes it."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _OPEN.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Gives up the lock of a descriptor, if it holds one; does nothing to a parent's, in its fork."""
    if descriptor in _OPEN:
        _OPEN.discard(descriptor)
        try:
            lock(descriptor, fcntl.LOCK_UN)  # a fork that has not closed its copy yet would keep it locked
        finally:
            os.close(descriptor)


@contextmanager
def filling(path: str) -> Iterator[tuple[int, str] | None]:
    """Yields (descriptor, name) of a part file to fill and rename to `path`; one process or thread at a time.

    Others wait. None means that things have changed meanwhile: look again whether the file is there. A part file that
    was not renamed is removed.
    """
    part = f"{path}.part"
    descriptor = open_for_lock(part, os.O_RDWR | os.O_CREAT)
    try:
        with progress.waiting_for(f"`{path}`, which another process makes"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield (descriptor, part) if is_file_at(descriptor, part) and not os.path.lexists(path) else None
    finally:
        with suppress(OSError):  # of looking
            if is_file_at(descriptor, part):
                remove_leftover(part)
        close_lock(descriptor)


def is_file_at(descriptor: int, path: str) -> bool:
    """Whether an open file still has this name."""
    try:
        found = Path(path).stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all bytes at an offset of a file."""
    while data:
        count = os.pwrite(descriptor, data, offset)
        offset += count
        data = data[count:]


@contextmanager
def waiting_for(path: str, pause: Callable[[float], bool]) -> Iterator[bool]:
    """Holds the lock of a file, made if need be, and yields whether that is so.

    Others wait for it in steps, so that they can stop waiting. Where files cannot be made or locked, everybody goes on
    without: the work is then done more than once.

    Args:
        path: path of the file, which stays.
        pause: waits so many seconds at most and returns whether to stop waiting.
    """
    descriptor, is_locked = None, False
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        with progress.waiting_for(f"`{path}`, which another process holds"):
            while not is_locked:
                try:
                    if not (is_locked := lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
                except BlockingIOError:
                    if pause(_PAUSE_SECONDS):
                        break
    except OSError as error:
        _LOGGER.warning("cannot lock `%s`, so that others may do the same work: %s", path, error.strerror)
    try:
        yield is_locked
    finally:
        if descriptor is not None:
            close_lock(descriptor)
