"""What tells a file from another that took its name, and opening files so that nothing else is taken for one."""

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
"""Where numbers of devices and files mean the same: one boot, one view of the file systems."""
with suppress(OSError):
    HERE = f"{boot_id()}/0"
    HERE = f"{boot_id()}/{mount_namespace()}"


class FileVersion(NamedTuple):  # two for each prefix at the start of a run: a frozen dataclass takes four times as long
    """What a file was when it was opened.

    Two versions are of one file if size and time of change are equal and, where both were taken on one machine since it
    started, device and inode too. On another machine, or in a container that mounts file systems of its own, these mean
    nothing. Some file systems of user space number a file anew when they meet it again: it is the same if nothing was
    ever done to it in between (`changed_ns`, of names and permissions too), which nobody can set back.
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
            difference = f"expected {self.num_bytes} bytes, found a file of {found.num_bytes}"
        elif self.modified_ns != found.modified_ns:
            then, now = self.modified_ns, found.modified_ns
            difference = f"expected the file changed last at {then} ns, found one changed at {now} ns"
        else:
            difference = f"expected inode {self.inode}, found {found.inode}"
        message = f"`{path}` was replaced after it was opened: {difference}"
        raise ChangedFileError(message, hint="open the dataset again")


def version_of(path: str) -> FileVersion:
    """Returns what a regular file is now; one stat."""
    try:  # entering a context takes longer than asking
        status = os.stat(path)
    except OSError:
        with storage_errors("open", path):
            raise
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path, status.st_mode)
    return FileVersion.of(status)


def open_regular(path: str) -> int:
    """Returns a descriptor to read a regular file; all else is a `StorageError` at once: a pipe would make it wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a folder is an error of its own
        return descriptor
    os.close(descriptor)
    raise _not_regular(path, mode)


def read_at_most(descriptor: int, num_bytes: int) -> bytes:
    """Returns the next bytes of a regular file, at most so many; needs memory for what there is only."""
    return os.read(descriptor, min(num_bytes, os.fstat(descriptor).st_size))


def check_version(descriptor: int, expected: FileVersion | None, path: str) -> None:
    """Raises a `ChangedFileError` if an open file has another version than this one."""
    if expected is not None:
        expected.check(FileVersion.of(os.fstat(descriptor)), path)


def _not_regular(path: str, mode: int) -> StorageError:
    """Returns the error for what has the name of a file and is none."""
    if stat.S_ISDIR(mode):
        with storage_errors("open", path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    expected = f"expected a regular file, found {_KINDS.get(stat.S_IFMT(mode), 'something else')}"
    return StorageError(f"cannot open `{path}`: {expected}", hint="write it into a file first")
