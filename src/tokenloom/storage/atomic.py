"""Files that appear under their name whole, or not at all: written under a hidden name, made durable, renamed.

Also locks that die with their holder, for what processes write or share; nothing else asks what a filesystem can do.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from typing import Self

from tokenloom.errors import StorageError, TokenloomError

_LOGGER = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)
"""What filesystems answer that do not sync folders, and folders that may be written and not be opened."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What filesystems answer that have no locks, such as Lustre without `-o flock`."""


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` that says what was being done to which file."""
    try:
        yield
    except TokenloomError:  # which may be an `OSError`, too, and says what is the matter
        raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "the disk is full; free some space, or write elsewhere" if is_full else None
        message = f"cannot {action} `{path}`: {error.strerror or error}"
        raise StorageError(message, hint=hint) from error


class PendingFile:
    """A file being written under a hidden name beside its final one; `publish` renames it in one step.

    After a `kill -9` a hidden `.NAME.PROCESS-….tmp` file stays behind. Two writers of one path do not meet; the last to
    publish wins, whole. Anything but `publish` (an exception, garbage collection, `discard`) removes it.

    Args:
        path: where the file will be.
        durable: whether it survives a loss of power once published. Without, it is much cheaper, and after such a loss
            may hold anything: for what can be checked and made again.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self.path: str = os.fspath(path)
        self.is_durable = durable
        self._owner = os.getpid()
        self._stream: BufferedRandom | None = None
        self._hidden_path: str | None = None
        folder, name = os.path.split(self.path)
        shown = os.path.join(folder, name.removeprefix("."))
        hidden = hidden_path(shown, f"{os.getpid()}-{secrets.token_hex(4)}.tmp")
        with storage_errors("create", self.path):
            self._stream = open(hidden, "x+b", _BUFFER_BYTES)  # type: ignore[assignment]  # noqa: SIM115 - closed later
        self._hidden_path = hidden

    @property
    def stream(self) -> BufferedRandom:
        """The open binary stream; writing to it after `seal`, `publish` or `discard` is an error."""
        if self._stream is None:
            raise self._ended()
        if os.getpid() != self._owner:
            message = f"`{self.path}` is being written by process {self._owner}, not by its fork {os.getpid()}"
            raise StorageError(message)
        return self._stream

    @property
    def readable_path(self) -> str:
        """The hidden name, which leads to what was handed to the system until the file is published or discarded."""
        if self._hidden_path is None:
            raise self._ended()
        return self._hidden_path

    def _ended(self) -> StorageError:
        return StorageError(f"`{self.path}` was already published or discarded")

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        with storage_errors("write", self.path):
            self.stream.write(data)

    def sync(self) -> None:
        """Makes what was written durable, if the file is meant to be, still under its hidden name."""
        if self._stream is None and self._hidden_path is not None:  # sealed
            return
        with storage_errors("write", self.path):
            self.stream.flush()
            if self.is_durable:
                os.fsync(self.stream.fileno())

    def seal(self) -> None:
        """Makes what was written durable and closes the file: for more files than may be open at once."""
        self.sync()
        if self._stream is not None:
            with storage_errors("write", self.path):
                self._stream.close()
            self._stream = None

    def publish(self) -> None:
        """Makes the file durable and gives it its name, replacing what had it."""
        try:
            self.seal()
            with storage_errors("publish", self.path):
                os.replace(self.readable_path, self.path)
            self.release()
        finally:
            self.discard()
        if self.is_durable:
            sync_folder(os.path.dirname(self.path) or ".")

    def release(self) -> None:
        """Leaves the sealed file to the caller, under its hidden name."""
        self._hidden_path = None

    def discard(self) -> None:
        """Removes what was written; harmless when repeated, and in a forked child (which does not own it)."""
        stream, self._stream = self._stream, None
        hidden, self._hidden_path = self._hidden_path, None
        is_ours = os.getpid() == self._owner
        if stream is not None:
            with suppress(OSError):  # flushing what is left can fail on a full disk; the file goes away anyhow
                # What the parent had buffered must not reach the file a second time.
                (stream if is_ours else stream.raw).close()
        if hidden is not None and is_ours:
            remove_leftover(hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_hidden_path"):
            self.discard()


def publish_bytes(path: str, data: bytes, *, durable: bool = False) -> None:
    """Writes a small file that appears whole, as a `PendingFile` does."""
    with PendingFile(path, durable=durable) as file:
        file.write(data)


def remove_pending(prefixes: Iterable[str], *, process: int | str) -> None:
    """Removes what a dead process was writing to paths that begin with a prefix; costs a listing of their folders.

    Nothing goes while a folder has a journal of `storage/publishing.py`, which may name files of a complete group.
    """
    split = map(os.path.split, prefixes)
    starts = tuple(os.path.join(folder or ".", f".{name}") for folder, name in split)
    for folder in {os.path.dirname(start) for start in starts}:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            paths = [os.path.join(folder, entry.name) for entry in entries]
            if not any(path.endswith(".replacing") for path in paths):
                for path in paths:
                    if path.startswith(starts) and re.search(rf"\.{process}-[0-9a-f]{{8}}\.tmp$", path):
                        os.unlink(path)


def sync_folder(folder: str) -> None:
    """Makes renames in a folder durable; some filesystems refuse to sync a directory, which costs only durability."""
    with storage_errors("sync", folder):
        try:
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise


def remove_leftover(path: str) -> None:
    """Removes a file that nobody needs; what cannot be removed stays and is logged: another error counts."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _LOGGER.warning("cannot remove `%s`, which stays: %s", path, error.strerror or error)


def hidden_path(path: str, suffix: str) -> str:
    """Returns a hidden path beside another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


_OPEN: set[int] = set()
"""Descriptors that hold or await locks. A forked child closes its copies, or it would hold what its parent lets go."""


def _close_copies() -> None:
    for descriptor in _OPEN:
        with suppress(OSError):
            os.close(descriptor)
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_copies)


def lock(descriptor: int, operation: int) -> bool:
    """Locks or unlocks an open file by `flock`; returns False where the filesystem has no locks."""
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


def is_file_at(descriptor: int, path: str) -> bool:
    """Whether an open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all bytes at an offset of a file."""
    while data:
        count = os.pwrite(descriptor, data, offset)
        offset += count
        data = data[count:]
