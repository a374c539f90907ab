"""Work in the background while the interpreter ends: nothing new begins, and nobody complains.

Executors refuse work from then on, and what is under way is waited for. A daemon thread that asks for more, or waits
for what will not come, is stopped where it is until the process is gone, as the interpreter itself stops it a moment
later; any other thread, which is waited for, gets an error.
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
"""Set once the interpreter has begun to end: the main thread is done."""
_THREAD = threading.local()


def submit(executor: Executor, function: Callable[[], T]) -> Future[T]:
    """Runs a function in the background, as `Executor.submit` does; a `StorageError` if the interpreter is ending."""

    def work() -> T:
        _THREAD.is_worker = True  # said here too, because an executor notes a thread only after it has begun to work
        return function()

    try:
        return executor.submit(work)
    except RuntimeError as error:
        if not ENDING.is_set():
            raise
        message = "nothing is read any more: the interpreter is ending"
        raise StorageError(message) from error


def interruptible(call: Callable[[], T]) -> T:
    """Returns what a call returns that blocks outside of Python; in the main thread, a signal need not wait for it."""
    return beside(call).result() if threading.current_thread() is threading.main_thread() else call()


def beside(call: Callable[[], T]) -> Future[T]:
    """Starts a call in a daemon thread of its own, for which nobody waits in the end."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  it is raised by who waits
            answer.set_exception(error)

    threading.Thread(target=run, name="tokenloom-request", daemon=True).start()
    return answer


@contextmanager
def daemons_stopped() -> Iterator[None]:
    """Stops a daemon thread for good that fails because the interpreter is ending; it must hold no lock here."""
    try:
        yield
    except (StorageError, CancelledError):
        thread = threading.current_thread()  # those of executors are waited for, daemons or not
        is_worker = getattr(_THREAD, "is_worker", False) or thread in executor_threads._threads_queues
        if ENDING.is_set() and thread.daemon and not is_worker:
            threading.Event().wait()
        raise


with suppress(RuntimeError):  # imported only now that it is ending
    # Before executors wait for their threads, which `atexit` comes after; these call the latest registered first.
    threading._register_atexit(ENDING.set)  # type: ignore[attr-defined]
