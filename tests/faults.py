"""Failures and deaths at every call that changes names in a filesystem: open, link, rename, unlink, make a folder.

With `arm_all`, also at those that write bytes, make them durable or lock a file.

Python announces these calls (`sys.addaudithook`) before they happen, whichever module makes them; so a test can let the
n-th of them fail, or kill the process there, for n = 0, 1, 2, … until one run sees no fault.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVENTS = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_NEED_NO_ROOM = {"os.remove", "os.rename", "os.rmdir"}

_WRITES = {os: ("write", "pwrite", "fsync", "copy_file_range", "ftruncate"), fcntl: ("flock",)}


class _Fault:
    """What is to happen at which call below which folder."""

    def __init__(self) -> None:
        self.folder = ""
        self.left = -1
        self.lasts = False
        self.act: Callable[[], None] | None = None

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _EVENTS or (self.lasts and event in _NEED_NO_ROOM):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if any(isinstance(each, str) and each.startswith(self.folder) for each in arguments[:2]):
            self.count()

    def count(self) -> None:
        """Counts a call, and acts if it is the one."""
        if self.act is None:
            return
        self.left -= 1
        if self.left < 0:
            act, self.act = self.act, self.act if self.lasts else None
            act()


_FAULT = _Fault()
_HOOKED = threading.Event()


def _arm(folder: str, number: int, act: Callable[[], None]) -> None:
    if not _HOOKED.is_set():
        sys.addaudithook(_FAULT.hear)
        _HOOKED.set()
    _FAULT.folder, _FAULT.left, _FAULT.act = folder, number, act


def arm_all(folder: str, number: int, act: Callable[[], None], *, lasting: bool = False) -> Callable[[], int]:
    """Lets a call of this process do something, or one that writes; there is no way back: for forks.

    Args:
        folder: where names change.
        number: of the call, from 0 on.
        act: what happens there.
        lasting: at all calls after it, too, but those that remove names.

    Returns:
        Tells how many calls there were so far.
    """
    for module, names in _WRITES.items():
        for name in names:
            setattr(module, name, _counted(getattr(module, name)))
    _FAULT.lasts = lasting
    _arm(folder, number, act)
    return lambda: number - _FAULT.left


def _counted(call: Callable[..., object]) -> Callable[..., object]:
    def counted(*arguments: object, **options: object) -> object:
        _FAULT.count()
        return call(*arguments, **options)

    return counted


@contextmanager
def failing(folder: object, number: int, error: BaseException | None = None) -> Iterator[Callable[[], bool]]:
    """Lets one call fail; yields a function that says whether it was reached."""
    failure = OSError(errno.EIO, "injected") if error is None else error
    reached = []

    def fail() -> None:
        reached.append(True)
        raise failure

    _arm(os.fspath(folder), number, fail)  # type: ignore[arg-type]
    try:
        yield lambda: bool(reached)
    finally:
        _FAULT.act = None


def fills_at(folder: object, number: int, work: Callable[[], object]) -> bool | None:
    """Runs some work in a fork for which the disk is full from one call on; whether it failed, None if it had ended."""
    child = os.fork()
    if child == 0:
        reached = []

        def fail() -> None:
            reached.append(True)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        try:
            arm_all(os.fspath(folder), number, fail, lasting=True)  # type: ignore[arg-type]
            work()
        except OSError:  # of which storage errors are
            os._exit(1)
        except BaseException:  # noqa: BLE001 - the parent sees the code
            os._exit(2)
        os._exit(3 if reached else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, 3), "another error than that of the disk"
    return None if status == 0 else status == 1


def dies_at(folder: object, number: int, work: Callable[[], object], *, every: bool = False) -> bool:
    """Runs some work in a fork that is killed at one call, one of those of `arm_all` with `every`; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            arm = arm_all if every else _arm
            arm(os.fspath(folder), number, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type]
            work()
        except BaseException:  # noqa: BLE001 - the parent sees the code
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the work failed by itself"
    return False
