"""What a filesystem can do, and what is done where it cannot: locks, unnamed files, hard links, exchanged names.

Nothing else asks a filesystem for these; a call that is missing there is an answer, never an `OSError`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
from contextlib import suppress

from tokenloom.machine import descriptor_path, has_descriptor_paths

NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""What filesystems answer that have no hard links, or none between these two places."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What filesystems answer that have no locks, such as Lustre without `-o flock`."""

_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS)
"""What filesystems and kernels answer that have no files without a name."""


_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD, and a flag of `renameat2`

_CAN_LINK_UNNAMED: dict[int, bool] = {}
"""Whether a file without a name can get one, by device: found out once."""


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


def hidden_name(folder: str, name: str) -> str:
    """Returns the path of a hidden name beside the final one, which may be hidden, that no other writer uses."""
    return os.path.join(folder, f".{name.removeprefix('.')}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def exchange(path: str, other: str) -> bool:
    """Swaps what two names stand for, in one step; returns False where the system or the filesystem cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(path), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(number, os.strerror(number), other)
    return False


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
        if error.errno in NO_LINKS:
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
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
        os.rename(source, path)
        return
    os.unlink(source)
