"""Files that appear under their name whole, or not at all, and what a filesystem can do towards that.

Nothing else asks a filesystem for unnamed files or hard links; a call that is missing there is an answer, never an
`OSError`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Self

from tokenloom.errors import StorageError, TokenloomError
from tokenloom.machine import descriptor_path, has_descriptor_paths

_LOGGER = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""What filesystems answer that have no hard links, or none between these two places."""

_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS)
"""What filesystems and kernels answer that have no files without a name."""

_CAN_LINK_UNNAMED: dict[int, bool] = {}
"""Whether a file without a name can get one, by device: found out once."""

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)
"""What filesystems answer that do not sync folders, and folders that may be written and not be opened."""


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` that says what was being done to which file."""
    try:
        yield
    except TokenloomError:  # which may be an `OSError`, too, and says what is the matter
        raise
    except OSError as error:
        hint = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "the disk is full; free some space, or write elsewhere"
        message = f"cannot {action} `{path}`: {error.strerror or error}"
        raise StorageError(message, hint=hint) from error


class PendingFile:
    """A file being written beside its final place; `publish` moves it there in one step.

    Until then it has no name at all where the filesystem can do that (`O_TMPFILE`), so that nothing is left of it
    however the process ends. Elsewhere it has a hidden and unique one, and after a `kill -9` a hidden `.NAME.*.tmp`
    file stays behind; it never counts as the file itself. Two writers of one path do not meet; whichever publishes
    last wins, whole. Anything but `publish` and `place` (an exception, garbage collection, `discard`) removes it.

    Args:
        path: where the file will be.
        durable: whether it survives a loss of power once published. Without, it is much cheaper, and after such a loss
            may hold anything: for what can be checked and made again.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self.path: str = os.fspath(path)
        self._durable = durable
        self._folder, self._name = os.path.split(self.path)
        self._owner = os.getpid()
        self._temporary_path: str | None = None
        self._stream: IO[bytes] | None = None
        self._is_sealed = False
        with storage_errors("create", self.path):
            if (descriptor := open_unnamed(self._folder or ".", self._name)) is not None:
                self._stream = open(descriptor, "w+b", buffering=_BUFFER_BYTES)  # noqa: SIM115 - closed later
                return
            temporary_path = hidden_name(self._folder, self._name)
            try:
                self._stream = open(temporary_path, "x+b", buffering=_BUFFER_BYTES)  # noqa: SIM115
                self._temporary_path = temporary_path
            except BaseException:  # an interruption may come between creating the file and remembering it
                with suppress(OSError):
                    os.unlink(temporary_path)
                raise

    @property
    def stream(self) -> IO[bytes]:
        """The open binary stream; writing to it after `publish` or `discard` is an error."""
        if self._stream is None:
            message = f"`{self.path}` was already published or discarded"
            raise StorageError(message)
        if os.getpid() != self._owner:
            message = f"`{self.path}` is being written by process {self._owner}, not by its fork {os.getpid()}"
            raise StorageError(message)
        return self._stream

    @property
    def is_durable(self) -> bool:
        """Whether the file survives a loss of power once published."""
        return self._durable

    @property
    def readable_path(self) -> str:
        """A path that leads to what was written and handed to the system, until the file is published or discarded."""
        if self._temporary_path is not None:
            return self._temporary_path
        return descriptor_path(self.stream.fileno())

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        with storage_errors("write", self.path):
            self.stream.write(data)

    def sync(self) -> None:
        """Makes what was written durable, if the file is meant to be, still without its name."""
        if self._is_sealed:
            return
        with storage_errors("write", self.path):
            self.stream.flush()
            if self._durable:
                os.fsync(self.stream.fileno())

    def seal(self) -> None:
        """Does what `sync` does and closes the file, under a hidden name: for more files than may be open at once."""
        self.sync()
        with storage_errors("write", self.path):
            self._give_hidden_name()
            if self._stream is not None:
                self._stream.close()
        self._is_sealed = True

    def place(self) -> None:
        """Gives the file its name, which nothing may have; the folder is not synced.

        Raises:
            StorageError: there is something of that name.
        """
        with storage_errors("publish", self.path):
            if self._temporary_path is None:
                link_unnamed(self.stream.fileno(), self.path)
            else:
                rename_to_new(self._temporary_path, self.path)
        self._end()

    def publish(self) -> None:
        """Makes the file durable and gives it its name, replacing what had it."""
        try:
            self.sync()
            with storage_errors("publish", self.path):
                self._take_name()
        except BaseException:
            self.discard()
            raise
        self._end()
        if self._durable:
            sync_folder(self._folder or ".")

    def identity(self) -> tuple[int, int]:
        """Returns device and inode, which the file keeps under its final name."""
        with storage_errors("look at", self.path):
            if self._is_sealed and self._temporary_path is not None:
                return identity_at(self._temporary_path) or (0, 0)
            status = os.fstat(self.stream.fileno())
            return status.st_dev, status.st_ino

    def discard(self) -> None:
        """Removes what was written; harmless when repeated, and in a forked child (which does not own it)."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if os.getpid() != self._owner:
            _forget(stream)
            return
        with suppress(OSError):
            stream.close()  # flushing what is left can fail on a full disk; the file goes away anyhow
        if self._temporary_path is not None:
            remove_leftover(self._temporary_path)

    def _take_name(self) -> None:
        if self._temporary_path is None:
            if link_if_free(self.stream.fileno(), self.path):
                return
            self._give_hidden_name()
        assert self._temporary_path is not None
        os.replace(self._temporary_path, self.path)

    def _give_hidden_name(self) -> None:
        if self._temporary_path is None:
            temporary_path = hidden_name(self._folder, self._name)
            try:
                link_unnamed(self.stream.fileno(), temporary_path)
                self._temporary_path = temporary_path
            except BaseException:  # an interruption may come between the two
                with suppress(OSError):
                    os.unlink(temporary_path)
                raise

    def _end(self) -> None:
        """Forgets the file, which has its name now."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with storage_errors("write", self.path):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.discard()


class PendingLink:
    """A second name for a local file, under a hidden one until it is placed; see `pending_link`."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self._temporary_path = hidden_name(*os.path.split(path))
        os.link(source, self._temporary_path)

    @property
    def readable_path(self) -> str:
        """The hidden name."""
        return self._temporary_path

    def sync(self) -> None:
        """Makes the bytes of the file durable."""
        with storage_errors("write", self.path), open(self._temporary_path, "rb") as stream:
            os.fsync(stream.fileno())

    def seal(self) -> None:
        """Does what `sync` does: no file is open."""
        self.sync()

    def place(self) -> None:
        """Gives the file its name, which nothing may have."""
        with storage_errors("publish", self.path):
            rename_to_new(self._temporary_path, self.path)

    def identity(self) -> tuple[int, int]:
        """Returns device and inode of the file."""
        return identity_at(self._temporary_path) or (0, 0)

    def discard(self) -> None:
        """Removes the hidden name; harmless when repeated."""
        with suppress(OSError):
            os.unlink(self._temporary_path)

    def __del__(self) -> None:
        if hasattr(self, "_temporary_path"):
            self.discard()


def pending_link(source: str, path: str) -> PendingLink | None:
    """Returns a second name for a local file, to be placed; None where that cannot be.

    Another filesystem, or one without hard links, is where it cannot be. Once placed, either name may go.
    """
    try:
        return PendingLink(source, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return None
        with storage_errors("publish", path):
            raise


def publish_bytes(path: str, data: bytes, *, durable: bool = False) -> None:
    """Writes a small file that appears whole, as a `PendingFile` does, with fewer calls."""
    folder, name = os.path.split(path)
    temporary_path = hidden_name(folder, name)
    with storage_errors("write", path):
        descriptor = open_unnamed(folder or ".", name)
        is_unnamed = descriptor is not None
        try:
            if descriptor is None:
                descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                written = 0
                while written < len(data):  # a disk that fills up takes a part
                    written += os.write(descriptor, memoryview(data)[written:])
                if durable:
                    os.fsync(descriptor)
                is_there = is_unnamed and link_if_free(descriptor, path)
                if is_unnamed and not is_there:
                    link_unnamed(descriptor, temporary_path)
            finally:
                os.close(descriptor)
            if not is_there:
                os.replace(temporary_path, path)
            if durable:
                sync_folder(folder or ".")
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary_path)
            raise


def remove_pending(prefixes: Iterable[str], *, process: int | str) -> None:
    """Removes what a process that is dead was writing to paths that begin so; costs a listing of their folders."""
    beginnings: dict[str, list[str]] = {}
    for prefix in prefixes:
        folder, name = os.path.split(prefix)
        beginnings.setdefault(folder or ".", []).append(f".{name}")
    for folder, names in beginnings.items():
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            pending = [entry.name for entry in entries if re.search(rf"\.{process}-[0-9a-f]{{8}}\.tmp$", entry.name)]
            for name in pending:
                if name.startswith(tuple(names)):
                    os.unlink(os.path.join(folder, name))


def _forget(stream: IO[bytes]) -> None:
    """Closes a forked child's copy: what the parent had buffered must not reach the file a second time."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno(), inheritable=False)
    with suppress(OSError):
        stream.close()


def sync_folder(folder: str) -> None:
    """Makes renames in a folder durable; some filesystems refuse to sync a directory, which costs only durability.

    Raises:
        StorageError: the disk failed, and what was renamed may be lost.
    """
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
    """Removes a file that nobody needs; what cannot be removed stays and is logged, so that the first error is told."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _LOGGER.warning("cannot remove `%s`, which stays: %s", path, error.strerror or error)


def own_folder(path: str, *, hint: str) -> str:
    """Makes a folder for this user alone, if need be, and returns its path.

    Args:
        path: path of the folder.
        hint: what to do if it is not.

    Raises:
        StorageError: it cannot be made; or it is a link, somebody else's, or others may write into it, so that what is
            in it cannot be trusted.
    """
    with storage_errors("create", path):
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return path
    expected = f"expected a folder that user {os.geteuid()} alone may write into"
    message = f"`{path}`: {expected}, found {stat.filemode(found.st_mode)} of user {found.st_uid}"
    raise StorageError(message, hint=f"{hint}, or allow nobody else to write there: `chmod 700 {path}`")


def hidden_name(folder: str, name: str) -> str:
    """Returns the path of a hidden name beside the final one, which may be hidden, that no other writer uses."""
    return os.path.join(folder, f".{name.removeprefix('.')}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def identity_at(path: str) -> tuple[int, int] | None:
    """Returns device and inode of what has a name, links not followed; None if nothing has it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def open_unnamed(folder: str, name: str) -> int | None:
    """Returns the descriptor of a new file without a name; None where there can be none, or none could be named.

    Args:
        folder: where the file will be.
        name: the name that it will have.
    """
    if not has_descriptor_paths():
        return None
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            device = os.fstat(descriptor).st_dev
            if device not in _CAN_LINK_UNNAMED:
                _CAN_LINK_UNNAMED[device] = _can_link_unnamed(folder, name)
        except BaseException:
            os.close(descriptor)
            raise
        if _CAN_LINK_UNNAMED[device]:
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
    return None


def _can_link_unnamed(folder: str, name: str) -> bool:
    """Whether files without a name can get one in a folder: some filesystems and sandboxes have no hard links."""
    path = hidden_name(folder, name)
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        link_unnamed(descriptor, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(path)
    return True


def link_unnamed(descriptor: int, path: str) -> None:
    """Names a file that has no name; `FileExistsError` if something has that name."""
    # Python follows the link to the file, which is the point, only where a folder's descriptor is given, here unused.
    os.link(descriptor_path(descriptor), path, src_dir_fd=descriptor, follow_symlinks=True)


def link_if_free(descriptor: int, path: str) -> bool:
    """Names a file that has no name, if nothing has that name, and returns whether it did: only a rename replaces."""
    try:
        link_unnamed(descriptor, path)
    except FileExistsError:
        return False
    return True


def rename_to_new(source: str, path: str) -> None:
    """Renames a file to a name that nothing has; `FileExistsError` otherwise."""
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
        os.rename(source, path)
        return
    os.unlink(source)
