"""What works in a folder: a file is made, mapped, locked and renamed in a scratch folder that goes away."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SCRATCH = ".tokenloom-doctor-"
"""What scratch folders and files begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a folder allows.

    Attributes:
        folder: which.
        num_free_bytes: free for this user.
        num_free_inodes: files that can still be made; None where the file system does not count them.
        reason: why it cannot be written; None if it can.
        failed: what does not work there, and why.
    """

    folder: str
    num_free_bytes: int
    num_free_inodes: int | None
    reason: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_writable(self) -> bool:
        """Whether files can be made in it."""
        return self.reason is None


def try_folder(folder: str) -> Trial:
    """Returns what works in a folder; leaves nothing there.

    Raises:
        OSError: it is not there.
    """
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    inodes = status.f_favail if status.f_files else None
    try:
        scratch = tempfile.mkdtemp(prefix=SCRATCH, dir=folder)
    except OSError as error:
        reason = error.strerror or str(error)
        return Trial(folder=folder, num_free_bytes=free, num_free_inodes=inodes, reason=reason)
    failed = {}
    try:
        for name, works in _TRIALS.items():
            try:
                works(scratch)
            except (OSError, ValueError) as error:
                failed[name] = (error.strerror if isinstance(error, OSError) else None) or str(error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Trial(folder=folder, num_free_bytes=free, num_free_inodes=inodes, failed=failed)


def _maps(folder: str) -> None:
    path = os.path.join(folder, "mapped")
    with open(path, "xb") as file:
        file.write(b"tokens" * 1000)
    with open(path, "rb") as written, mmap.mmap(written.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        if mapped[-6:] != b"tokens":
            message = "other bytes are mapped than were written"
            raise ValueError(message)


def _locks(folder: str) -> None:
    """Takes a lock, and sees that another open file does not get it."""
    path = os.path.join(folder, "locked")
    with open(path, "xb") as first, open(path, "ab") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    message = "two hold one lock"
    raise ValueError(message)


def _creates_once(folder: str) -> None:
    path = os.path.join(folder, "once")
    with open(path, "xb"):
        pass
    try:
        with open(path, "xb"):
            pass
    except FileExistsError:
        return
    message = "a file that is there is made again"
    raise ValueError(message)


def _renames(folder: str) -> None:
    old, new = os.path.join(folder, "old"), os.path.join(folder, "new")
    for path in (old, new):
        with open(path, "xb") as file:
            file.write(path.encode(errors="surrogateescape"))
    os.replace(old, new)
    with open(new, "rb") as renamed:
        if os.path.exists(old) or renamed.read() != old.encode(errors="surrogateescape"):
            message = "a file is not what was renamed to it"
            raise ValueError(message)


_TRIALS: dict[str, Callable[[str], None]] = {
    "mapping": _maps,
    "locks (flock)": _locks,
    "exclusive creation": _creates_once,
    "renaming over a file": _renames,
}
