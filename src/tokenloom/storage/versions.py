"""File versions, which detect that a file was replaced or modified, and functions that open only regular files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import NamedTuple

from tokenloom.errors import ChangedFileError, StorageError
from tokenloom.machine import boot_id, mount_namespace
from tokenloom.storage.atomic import storage_errors

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
_KINDS[stat.S_IFDIR] = "a folder"

HERE = "/0"
"""Names the boot and the mount namespace in which the device and inode numbers of this process are valid."""
with suppress(OSError):
    HERE = f"{boot_id()}/0"
    HERE = f"{boot_id()}/{mount_namespace()}"


class FileVersion(NamedTuple):  # four times as fast as a frozen dataclass; a run makes two per pair at its start
    """The version of a file when it was opened.

    Two versions are of one unchanged file if size and modification time are equal and, in the same `namespace`, also
    device and inode. As some user-space filesystems renumber inodes, an equal `changed_ns`, which programs cannot set,
    is enough instead of an equal device and inode.
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
        """Returns whether this version and `other` are versions of one unchanged file."""
        if (self.num_bytes, self.modified_ns) != (other.num_bytes, other.modified_ns):
            return False
        if self.namespace != other.namespace:
            return True
        return (self.device, self.inode) == (other.device, other.inode) or self.changed_ns == other.changed_ns

    def check(self, found: FileVersion, path: str) -> None:
        """Raises a `ChangedFileError` if `found`, the version of `path` now, differs from this version."""
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
    """Returns the current version of a regular file; takes one `stat`."""
    try:  # outside of `storage_errors`, as entering this context manager takes longer than `stat`
        status = os.stat(path)
    except OSError:
        with storage_errors("open", path):
            raise
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path, status.st_mode)
    return FileVersion.of(status)


def open_regular(path: str) -> int:
    """Opens a regular file for reading; for a pipe, device or socket, raises a `StorageError` instead of blocking."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a folder raises its own error
        return descriptor
    os.close(descriptor)
    raise _not_regular(path, mode)


def read_at_most(descriptor: int, num_bytes: int) -> bytes:
    """Returns at most the next `num_bytes` of a regular file; allocates at most the size of the file."""
    return os.read(descriptor, min(num_bytes, os.fstat(descriptor).st_size))


def check_version(descriptor: int, expected: FileVersion | None, path: str) -> None:
    """Raises a `ChangedFileError` if the version of an open file is not `expected`; None accepts any version."""
    if expected is not None:
        expected.check(FileVersion.of(os.fstat(descriptor)), path)


def _not_regular(path: str, mode: int) -> StorageError:
    kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
    hint = None if stat.S_ISDIR(mode) else "write its contents into a regular file first"
    return StorageError(f"cannot open `{path}`: it is {kind}", hint=hint)
