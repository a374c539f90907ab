"""Signs of life of a process that holds a lock: it touches the file, and those who wait watch by their own clocks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenloom.storage.atomic import storage_errors

_MOST_SECONDS_BETWEEN_TOUCHES = 5.0
_SECONDS_BETWEEN_LOOKS = 0.1


@contextmanager
def touched(descriptor: int | None, timeout_seconds: float) -> Iterator[None]:
    """Touches an open file again and again, from a thread of its own; None for no file.

    Args:
        descriptor: descriptor of the file.
        timeout_seconds: time after which its holder is taken for frozen.
    """
    if descriptor is None:
        yield
        return
    ended = threading.Event()
    seconds = min(_MOST_SECONDS_BETWEEN_TOUCHES, timeout_seconds / 8)

    def touch() -> None:
        while not ended.wait(seconds):
            with suppress(OSError):
                os.utime(descriptor)

    thread = threading.Thread(target=touch, name="tokenloom-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # before the descriptor is closed, and means another file


class Silence:
    """How long a file was not touched, by the clock of who waits: those of other machines may be wrong.

    Args:
        path: path of the file.
        timeout_seconds: time that is too long.
    """

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._path = path
        self._seen: int | None = None
        self._waited = 0.0

    def is_too_long(self) -> bool:
        """Waits a moment; whether the file has not been touched for too long. Time in which we stand still is none.

        Raises:
            StorageError: the disk failed.
        """
        began = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        passed = min(time.monotonic() - began, 2 * _SECONDS_BETWEEN_LOOKS)
        with storage_errors("look at", self._path), suppress(FileNotFoundError):
            now = Path(self._path).stat().st_mtime_ns
            self._waited = self._waited + passed if now == self._seen else 0.0
            self._seen = now
        return self._waited > self.timeout_seconds
