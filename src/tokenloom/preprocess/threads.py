"""Worker threads whose results come in the order of their inputs."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

_SECONDS_OF_A_LOOK = 1.0


class StuckError(Exception, Generic[Given]):
    """A thread has not come to an end with what it was given."""

    def __init__(self, given: Given) -> None:
        super().__init__("a thread is stuck")
        self.given = given


class WorkerThreads(Executor):
    """Threads that can be left behind: native code cannot be interrupted, and the end of Python must not wait for it.

    Args:
        count: number of threads.

    Attributes:
        count: likewise.
    """

    def __init__(self, count: int) -> None:
        self.count: int = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_left = False
        self._threads = [
            threading.Thread(target=_work_off, args=(self._tasks,), name=f"tokenloom_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Has a thread call a function."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, arguments, named))
        return future

    def leave(self) -> None:
        """Notes that a thread will not end."""
        self._is_left = True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base
        """Ends the threads, without starting what waits; does not wait for them if one of them will not end."""
        while cancel_futures or self._is_left:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if wait and not self._is_left:
            for thread in self._threads:
                thread.join()


_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _work_off(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function, arguments, named = task
        del task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments, **named))
            except BaseException as error:  # noqa: BLE001 - told where the result is asked for, an interruption too
                future.set_exception(error)
        del future, function, arguments, named  # not held while waiting


@contextmanager
def worker_threads(count: int) -> Iterator[WorkerThreads]:
    """Leaves without starting what waits; blocks being worked on are finished, and their results dropped."""
    executor = WorkerThreads(count)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def in_order(
    executor: WorkerThreads,
    work: Callable[[Given], Made],
    blocks: Iterable[Given],
    *,
    num_ahead: int,
    timeout_seconds: float,
    pulse: Callable[[], object],
) -> Iterator[Made]:
    """Yields what is made of the blocks, in order; at most `num_ahead` are read and not yielded.

    Args:
        executor: whose threads work.
        work: safe from several threads.
        blocks: what it is given.
        num_ahead: bounds the memory.
        timeout_seconds: time to wait for one block.
        pulse: returns something else whenever a block makes progress, and the time begins anew.

    Raises:
        StuckError: the time has passed; the thread is left behind.
    """
    running: deque[tuple[Future[Made], Given]] = deque()

    def next_result() -> Made:
        future, block = running.popleft()
        if not _is_done(future, timeout_seconds, pulse):
            executor.leave()
            raise StuckError(block)
        return future.result()

    for block in blocks:
        running.append((executor.submit(work, block), block))
        del block  # the thread's to drop
        if len(running) > num_ahead:
            yield next_result()
    while running:
        yield next_result()


def _is_done(future: Future[Any], timeout_seconds: float, pulse: Callable[[], object]) -> bool:
    """Waits until something is done; whether that is so. Time in which this process was stopped does not count."""
    look = min(_SECONDS_OF_A_LOOK, timeout_seconds / 4)
    waited, seen = 0.0, None
    while not future.done():
        began = time.monotonic()
        try:
            future.exception(timeout=look)
        except TimeoutError:
            waited += min(time.monotonic() - began, 2 * look)
        if (now := pulse()) != seen:
            waited, seen = 0.0, now
        if waited > timeout_seconds:
            return future.done()
    return True
