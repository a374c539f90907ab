"""Failures and kills at calls that change names in a filesystem; with `arm_all`, also at writes, syncs and locks.

Python's audit hooks announce these calls in any module, so a test can make the n-th call fail or kill the process
there, for n = 0, 1, 2, …, until a run has no fault.
"""

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
    """Runs `act` at call `number` (from 0) in `folder`; permanent, so use it in a fork.

    With `lasting`, also at all later calls except those that remove names. Returns a function that counts the calls.
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
    """Makes one call fail; yields a function that returns whether the call was reached."""
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
    """Runs `work` in a fork with a full disk from call `number`; returns whether it failed, None if it ended before."""
    child = os.fork()
    if child == 0:
        reached = []

        def fail() -> None:
            reached.append(True)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        try:
            arm_all(os.fspath(folder), number, fail, lasting=True)  # type: ignore[arg-type]
            work()
        except OSError:  # includes storage errors
            os._exit(1)
        except BaseException:  # noqa: BLE001 - the parent sees the code
            os._exit(2)
        os._exit(3 if reached else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, 3), "another error than that of the disk"
    return None if status == 0 else status == 1


def dies_at(folder: object, number: int, work: Callable[[], object], *, every: bool = False) -> bool:
    """Runs `work` in a fork that is killed at call `number`, with `every` as in `arm_all`; returns whether it was."""
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
