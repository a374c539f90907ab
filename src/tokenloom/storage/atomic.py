"""Files that appear under their name whole, or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Self

from tokenloom.errors import StorageError


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` that says what was being done to which file."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        hint = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "the disk is full; free some space, or write elsewhere"
        message = f"cannot {action} `{path}`: {error.strerror or error}"
        raise StorageError(message, hint=hint) from error


class PendingFile:
    """A file being written beside its final place; `publish` moves it there in one step.

    The temporary name is hidden and unique, so that two writers of the same path do not meet; whichever publishes
    last wins, whole. Anything but `publish` (an exception, garbage collection, `discard`) removes it. After a
    `kill -9` a hidden `.NAME.*.tmp` file stays behind; it never counts as the file itself.

    Args:
        path: where the file will be.
        durable: whether it survives a loss of power once published. Without, it is much cheaper, and after such a loss
            may hold anything: for what can be checked and made again.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self.path = os.fspath(path)
        self._durable = durable
        folder, name = os.path.split(self.path)
        self.temporary_path = _temporary_path(folder, name)
        self._owner = os.getpid()
        self._stream: IO[bytes] | None = None
        with storage_errors("create", self.path):
            try:
                self._stream = open(self.temporary_path, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by publish or discard
            except BaseException:  # an interruption may come between creating the file and remembering it
                with suppress(OSError):
                    os.unlink(self.temporary_path)
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

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        with storage_errors("write", self.path):
            self.stream.write(data)

    def sync(self) -> None:
        """Makes what was written durable, if the file is meant to be, still under the temporary name."""
        with storage_errors("write", self.path):
            self.stream.flush()
            if self._durable:
                os.fsync(self.stream.fileno())

    def publish(self) -> None:
        """Makes the file durable and gives it its name, replacing what had it."""
        try:
            self.sync()
            with storage_errors("write", self.path):
                self.stream.close()
            with storage_errors("publish", self.path):
                os.replace(self.temporary_path, self.path)
        except BaseException:
            self.discard()
            raise
        self._stream = None
        if self._durable:
            _sync_folder(os.path.dirname(self.path) or ".")

    def discard(self) -> None:
        """Removes the temporary file; harmless when repeated, and in a forked child (which does not own it)."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if os.getpid() != self._owner:
            _forget(stream)
            return
        with suppress(OSError):
            stream.close()  # flushing what is left can fail on a full disk; the file goes away anyhow
        with suppress(FileNotFoundError):
            os.unlink(self.temporary_path)

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


def publish_bytes(path: str, data: bytes) -> None:
    """Writes a small file that appears whole, as a `PendingFile` that is not durable does, with fewer calls."""
    folder, name = os.path.split(path)
    temporary_path = _temporary_path(folder, name)
    with storage_errors("write", path):
        try:
            handle = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                written = 0
                while written < len(data):  # a disk that fills up takes a part
                    written += os.write(handle, memoryview(data)[written:])
            finally:
                os.close(handle)
            os.replace(temporary_path, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary_path)
            raise


def publish_link(source: str, path: str) -> bool:
    """Gives a local file a second name, in one step and durably, replacing what had it; False where that cannot be.

    Another filesystem, or one without hard links, is where it cannot be. Afterwards either name may go.
    """
    folder, name = os.path.split(path)
    temporary_path = _temporary_path(folder, name)
    try:
        os.link(source, temporary_path)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            return False
        with storage_errors("publish", path):
            raise
    try:
        with storage_errors("publish", path):
            with open(temporary_path, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary_path, path)
    finally:
        with suppress(FileNotFoundError):  # left where both names are of one file already
            os.unlink(temporary_path)
    _sync_folder(folder or ".")
    return True


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


def _temporary_path(folder: str, name: str) -> str:
    """Returns a hidden name beside the final one that no other writer uses."""
    return os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _forget(stream: IO[bytes]) -> None:
    """Closes a forked child's copy: what the parent had buffered must not reach the file a second time."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno(), inheritable=False)
    with suppress(OSError):
        stream.close()


def _sync_folder(folder: str) -> None:
    """Makes a rename durable; some filesystems refuse to sync a directory, which costs only durability."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
