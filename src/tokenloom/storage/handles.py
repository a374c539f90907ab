"""A bounded number of open files for any number of files that are read by position."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe that took the name of a file must not be waited for; its user looks what was opened."""


@dataclass(slots=True)
class _Handle:
    descriptor: int
    num_users: int


class HandlePool:
    """Keeps files open for their next reader, at most `capacity` of them besides those in use.

    The file that was used longest ago is closed first. Safe from several threads, and after a fork.

    Args:
        capacity: open files to keep.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._handles: OrderedDict[Hashable, _Handle] = OrderedDict()
        self._forgotten: deque[Hashable] = deque()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    @contextmanager
    def lease(self, key: Hashable, path: str, check: Callable[[int], None] | None = None) -> Iterator[tuple[int, bool]]:
        """Yields the descriptor of a file, and whether it was opened for this; it stays open while the context lasts.

        Args:
            key: what identifies the file; two opened files of one path may differ.
            path: path of the file.
            check: called with a descriptor that was opened for this, which is closed again if that raises.

        Raises:
            OSError: the file cannot be opened.
        """
        with self._lock:
            self._close_forgotten()
            handle = self._handles.get(key)
            is_new = handle is None
            if handle is None:
                handle = self._handles[key] = _Handle(_opened(path, check), 0)
            handle.num_users += 1
            self._handles.move_to_end(key)
            self._trim()
        try:
            yield handle.descriptor, is_new
        finally:
            with self._lock:
                handle.num_users -= 1

    def forget(self, key: Hashable) -> None:
        """Closes a file that nobody will ask for again; while somebody holds the lock, the next lease does it.

        Never waits: this is for finalizers, which Python runs in the middle of anything, of `lease` too.
        """
        self._forgotten.append(key)
        if self._lock.acquire(blocking=False):
            try:
                self._close_forgotten()
            finally:
                self._lock.release()

    def __len__(self) -> int:
        """Files that are open now."""
        return len(self._handles)

    def _close_forgotten(self) -> None:
        while self._forgotten:
            handle = self._handles.pop(self._forgotten.popleft(), None)
            if handle is not None:
                os.close(handle.descriptor)

    def _trim(self) -> None:
        if len(self._handles) <= self.capacity:
            return
        idle = [key for key, handle in self._handles.items() if handle.num_users == 0]
        for key in idle[: len(self._handles) - self.capacity]:
            os.close(self._handles.pop(key).descriptor)


def _opened(path: str, check: Callable[[int], None] | None) -> int:
    descriptor = os.open(path, _FLAGS)
    try:
        if check is not None:
            check(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
