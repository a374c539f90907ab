"""Background work while the interpreter ends.

Executors refuse new work from then on, and running work is waited for. A daemon thread that submits more, or waits for
a cancelled future, blocks until the process is gone; any other thread gets an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import thread as executor_threads
from contextlib import contextmanager, suppress
from typing import TypeVar

from tokenloom.errors import StorageError

T = TypeVar("T")

ENDING = threading.Event()
"""Set once the interpreter begins to end: the main thread is done."""
_THREAD = threading.local()


def submit(executor: Executor, function: Callable[[], T]) -> Future[T]:
    """Calls `Executor.submit`; a `StorageError` if the interpreter is ending."""

    def work() -> T:
        _THREAD.is_worker = True  # an executor notes a thread only after it has begun to work
        return function()

    try:
        return executor.submit(work)
    except RuntimeError as error:
        if not ENDING.is_set():
            raise
        raise StorageError("cannot read any more: the interpreter is ending") from error


def interruptible(call: Callable[[], T]) -> T:
    """Returns the result of a call that blocks outside of Python; the main thread stays open to signals."""
    return beside(call).result() if threading.current_thread() is threading.main_thread() else call()


def beside(call: Callable[[], T]) -> Future[T]:
    """Starts a call in a daemon thread of its own."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  `Future.result` raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="tokenloom-request", daemon=True).start()
    return answer


@contextmanager
def daemons_stopped() -> Iterator[None]:
    """Blocks a daemon thread that fails because the interpreter is ending; it must hold no lock."""
    try:
        yield
    except (StorageError, CancelledError):
        thread = threading.current_thread()  # those of executors are waited for, daemons or not
        is_worker = getattr(_THREAD, "is_worker", False) or thread in executor_threads._threads_queues
        if ENDING.is_set() and thread.daemon and not is_worker:
            threading.Event().wait()
        raise


with suppress(RuntimeError):  # imported while the interpreter ends
    # The latest registered runs first: before executors wait for their threads, and `atexit` comes after those.
    threading._register_atexit(ENDING.set)  # type: ignore[attr-defined]
