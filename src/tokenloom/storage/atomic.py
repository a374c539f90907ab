"""Atomic publication of files (write under a hidden name, sync, rename), and locks that end with their process."""

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
"""Error codes if a filesystem cannot sync folders, or if we may write into a folder but not open the folder."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Error codes of filesystems without locks, such as Lustre mounted without `-o flock`."""


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Converts an `OSError` in the `with` block to a `StorageError` that names the action and the path."""
    try:
        yield
    except TokenloomError:  # some of these are `OSError`s, too
        raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "delete files on the disk, or write to another disk" if is_full else None
        raise StorageError(f"cannot {action} `{path}`: {error.strerror or error}", hint=hint) from error


class PendingFile:
    """A file that is written under a hidden name in its final folder; `publish` renames it atomically.

    Before `publish`, `discard`, garbage collection or an exception in the `with` block removes the hidden file. Only
    `kill -9` leaves a hidden file, `.NAME.PROCESS-….tmp`. Of two writers of one path, the last to publish wins. A
    published file survives a loss of power, unless `durable=False` skips the slow `fsync` for a file easy to rebuild.
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
        """The open binary stream; `StorageError` after `seal`, `publish` or `discard`, and in a fork."""
        if self._stream is None:
            raise self._ended()
        if os.getpid() != self._owner:
            raise StorageError(f"cannot write `{self.path}` in process {os.getpid()}: process {self._owner} opened it")
        return self._stream

    @property
    def readable_path(self) -> str:
        """The hidden path; valid until the file is published or discarded."""
        if self._hidden_path is None:
            raise self._ended()
        return self._hidden_path

    def _ended(self) -> StorageError:
        return StorageError(f"`{self.path}`: was already published or discarded")

    def write(self, data: bytes | memoryview) -> None:
        with storage_errors("write", self.path):
            self.stream.write(data)

    def sync(self) -> None:
        """Flushes the hidden file and, if it is durable, syncs it."""
        if self._stream is None and self._hidden_path is not None:  # sealed
            return
        with storage_errors("write", self.path):
            self.stream.flush()
            if self.is_durable:
                os.fsync(self.stream.fileno())

    def seal(self) -> None:
        """Syncs and closes the hidden file without publishing it."""
        self.sync()
        if self._stream is not None:
            with storage_errors("write", self.path):
                self._stream.close()
            self._stream = None

    def publish(self) -> None:
        """Syncs the file and renames it to `path`, replacing an existing file."""
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
        """Leaves the sealed hidden file to the caller; this object no longer removes the file."""
        self._hidden_path = None

    def discard(self) -> None:
        """Removes the hidden file; does nothing if called again, or in a forked child, which does not own the file."""
        stream, self._stream = self._stream, None
        hidden, self._hidden_path = self._hidden_path, None
        is_ours = os.getpid() == self._owner
        if stream is not None:
            with suppress(OSError):  # flushing can fail on a full disk, and the file is removed anyway
                (stream if is_ours else stream.raw).close()  # a fork must not flush its copy of the parent's buffer
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
    with PendingFile(path, durable=durable) as file:
        file.write(data)


def remove_pending(prefixes: Iterable[str], *, process: int | str) -> None:
    """Removes hidden files of a dead `process` for paths that start with `prefixes`; skips folders with a journal."""
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
    """Makes renames in a folder durable; does nothing on a filesystem that cannot sync folders."""
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
    """Removes a file if it exists; a failure is only logged."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _LOGGER.warning("cannot remove `%s`: %s", path, error.strerror or error)


def hidden_path(path: str, suffix: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


_OPEN: set[int] = set()
"""Descriptors that hold or wait for locks. A forked child closes its copies, which would otherwise keep the locks."""


def _close_copies() -> None:
    for descriptor in _OPEN:
        with suppress(OSError):
            os.close(descriptor)
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_copies)


def lock(descriptor: int, operation: int) -> bool:
    """Calls `flock` to lock or unlock an open file; returns False on a filesystem without locks."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def open_for_lock(path: str, flags: int) -> int:
    """Opens a lock file, but follows no link; close the descriptor with `close_lock`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _OPEN.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Unlocks and closes a descriptor of `open_for_lock`; does nothing in a fork."""
    if descriptor in _OPEN:
        _OPEN.discard(descriptor)
        try:
            lock(descriptor, fcntl.LOCK_UN)  # an open copy in a fork would keep the lock
        finally:
            os.close(descriptor)


def is_file_at(descriptor: int, path: str) -> bool:
    """Returns whether `path` still refers to the file that `descriptor` has open."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        offset += count
        data = data[count:]
