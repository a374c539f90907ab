"""Versions of files, to detect a file that took another's name; and opening of regular files only."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from tokenloom.errors import ChangedFileError, StorageError
from tokenloom.machine import boot_id, mount_namespace
from tokenloom.storage.atomic import storage_errors

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}

HERE = "/0"
"""Namespace of device and inode numbers: one boot, one view of the file systems."""
with suppress(OSError):
    HERE = f"{boot_id()}/0"
    HERE = f"{boot_id()}/{mount_namespace()}"


class FileVersion(NamedTuple):  # two for each prefix at the start of a run: a frozen dataclass takes four times as long
    """Version of a file when it was opened.

    Two versions are of one unchanged file if size and time of change are equal and, within one `namespace`, device and
    inode too. Some file systems of user space renumber inodes: there `changed_ns`, which nobody can set back, decides.
    """

    device: int
    inode: int
    num_bytes: int
    modified_ns: int
    changed_ns: int
    namespace: str = HERE

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def is_same(self, other: FileVersion) -> bool:
        """Whether both are of one unchanged file."""
        if (self.num_bytes, self.modified_ns) != (other.num_bytes, other.modified_ns):
            return False
        if self.namespace != other.namespace:
            return True
        return (self.device, self.inode) == (other.device, other.inode) or self.changed_ns == other.changed_ns

    def check(self, found: FileVersion, path: str) -> None:
        """Raises a `ChangedFileError` if a file is not this one any more."""
        if self.is_same(found):
            return
        if self.num_bytes != found.num_bytes:
            difference = f"expected {self.num_bytes} bytes, found {found.num_bytes}"
        elif self.modified_ns != found.modified_ns:
            difference = f"expected modification at {self.modified_ns} ns, found {found.modified_ns} ns"
        else:
            difference = f"expected inode {self.inode}, found {found.inode}"
        message = f"`{path}` was replaced after it was opened: {difference}"
        raise ChangedFileError(message, hint="open the dataset again")


def version_of(path: str) -> FileVersion:
    """Returns the current version of a regular file; one stat."""
    try:  # entering a context takes longer than asking
        status = os.stat(path)
    except OSError:
        with storage_errors("open", path):
            raise
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path, status.st_mode)
    return FileVersion.of(status)


def open_regular(path: str) -> int:
    """Returns a descriptor to read a regular file; anything else, such as a pipe, is a `StorageError` at once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a folder is an error of its own
        return descriptor
    os.close(descriptor)
    raise _not_regular(path, mode)


def read_at_most(descriptor: int, num_bytes: int) -> bytes:
    """Returns the next `num_bytes` of a regular file, or fewer; allocates no more than its size."""
    return os.read(descriptor, min(num_bytes, os.fstat(descriptor).st_size))


def check_version(descriptor: int, expected: FileVersion | None, path: str) -> None:
    """Raises a `ChangedFileError` if an open file has another version."""
    if expected is not None:
        expected.check(FileVersion.of(os.fstat(descriptor)), path)


def _not_regular(path: str, mode: int) -> StorageError:
    if stat.S_ISDIR(mode):
        with storage_errors("open", path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
    return StorageError(f"cannot open `{path}`: it is {kind}", hint="write it into a file first")
