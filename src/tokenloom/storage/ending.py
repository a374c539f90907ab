"""Handles background work while the interpreter ends.

At this time, executors refuse new work, and the interpreter waits for running work. A daemon thread that submits work
or waits for a cancelled future must block until the process has ended; any other thread gets an error.
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
"""Set when the main thread has finished and the interpreter begins to end."""
_THREAD = threading.local()


def submit(executor: Executor, function: Callable[[], T]) -> Future[T]:
    """Calls `executor.submit(function)`; `StorageError` if the interpreter is ending."""

    def work() -> T:
        _THREAD.is_worker = True  # the executor registers a thread only after the thread has started
        return function()

    try:
        return executor.submit(work)
    except RuntimeError as error:
        if not ENDING.is_set():
            raise
        raise StorageError("cannot read: the interpreter is ending") from error


def interruptible(call: Callable[[], T]) -> T:
    """Returns the result of `call`, which may block outside of Python; the main thread still handles signals."""
    return run_in_thread(call).result() if threading.current_thread() is threading.main_thread() else call()


def run_in_thread(call: Callable[[], T]) -> Future[T]:
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
    """Blocks a daemon thread forever if the `with` block fails while the interpreter ends. Hold no lock around it."""
    try:
        yield
    except (StorageError, CancelledError):
        thread = threading.current_thread()  # the interpreter waits for threads of executors
        is_worker = getattr(_THREAD, "is_worker", False) or thread in executor_threads._threads_queues
        if ENDING.is_set() and thread.daemon and not is_worker:
            threading.Event().wait()
        raise


with suppress(RuntimeError):  # raised if the interpreter is already ending
    # Runs before executors wait for their threads, as functions run in reverse order; `atexit` functions run later.
    threading._register_atexit(ENDING.set)  # type: ignore[attr-defined]
