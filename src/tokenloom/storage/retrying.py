"""Asking again, patiently and not forever."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tokenloom.errors import AccessDeniedError, StorageError, UnavailableError
from tokenloom.progress import Wait

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


def patiently(
    attempt: Callable[[], T],
    *,
    deadline_seconds: float,
    on_retry: Callable[[], None],
    most_retries: int | None = None,
    may_be_denied: bool = False,
    stopping: threading.Event | None = None,
    wait: Wait | None = None,
) -> T:
    """Returns what an attempt returns, trying again after pauses that double, with jitter, until the deadline.

    Args:
        attempt: raises `UnavailableError` for what may pass; any other error is final.
        deadline_seconds: time from now, after which no attempt begins.
        on_retry: called before each further attempt.
        most_retries: further attempts at most; None for as many as the deadline allows.
        may_be_denied: whether a denied access is final. Without, it may pass too: where access was granted before, an
            expired token or a busy server is likelier than wrong credentials.
        stopping: set when nobody waits for the result any more.
        wait: is told which attempt it is, and why the one before failed.

    Raises:
        StorageError: the last attempt's, with the number of attempts.
    """
    stopping = stopping or threading.Event()
    passing = (UnavailableError,) if may_be_denied else (UnavailableError, AccessDeniedError)
    started = time.monotonic()
    pause = _FIRST_PAUSE_SECONDS
    num_attempts = 1
    if wait is not None:
        wait.note = "attempt 1"
    while True:
        try:
            return attempt()
        except passing as error:
            delay = pause * random.uniform(0.5, 1.0)  # so that many readers do not come back at once
            elapsed = time.monotonic() - started
            is_leaving = stopping.is_set()
            if is_leaving or elapsed + delay > deadline_seconds or num_attempts - 1 == most_retries:
                raise _given_up(error, num_attempts, elapsed) from error
            logger.info("attempt %d failed and is repeated in %.2f s: %s", num_attempts, delay, error.message)
            if wait is not None:
                wait.note = f"attempt {num_attempts + 1}, as {error.message}"
        stopping.wait(delay)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        num_attempts += 1
        on_retry()


def _given_up(error: StorageError, num_attempts: int, elapsed: float) -> StorageError:
    message = f"{error.message}; given up after {num_attempts} attempts in {elapsed:.1f} s"
    return type(error)(message, hint=error.hint or "check the endpoint and the network")
