"""An answer within some seconds, or none: of a mount or a server that may never give one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def answer_within(seconds: float, work: Callable[[], T]) -> T:
    """Returns what some work comes to, which is left behind if it takes longer.

    Nothing can interrupt a call that waits for a dead server of NFS. Its thread ends with the process.

    Raises:
        TimeoutError: it takes longer.
        BaseException: what it raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  it is raised by who asked
            errors.append(error)

    thread = threading.Thread(target=run, name="tokenloom-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        message = f"no answer within {seconds:g} s"
        raise TimeoutError(message)
    return results[0]
