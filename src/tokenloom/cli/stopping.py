"""How a command ends that somebody stops: by a signal, or by no longer reading what it prints."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tokenloom.rendering.words import printable
from tokenloom.storage.secrets import redacted

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SECONDS_OF_ONE_EVENT = 0.5
"""A closed terminal, or a service manager, sends several signals at once, which are one wish to stop."""


class StoppedBySignal(KeyboardInterrupt):
    """What a signal raises in the main thread; whatever cleans up after Ctrl-C cleans up after it too."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_status: int = 128 + number


@contextmanager
def signals_raised() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into `StoppedBySignal` while the `with` block lasts; a second one ends the process.

    A signal that is ignored, as `nohup` has it, or that somebody else handles, stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            raise StoppedBySignal(number)
        if time.monotonic() - first > _SECONDS_OF_ONE_EVENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    ours = [each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in ours:
            signal.signal(each, stop)
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def say(message: str) -> None:
    """Prints to stderr, without secrets and without what drives a terminal, as names of files and lines of them may
    hold, if that is still there: a closed terminal is not."""
    with suppress(OSError, ValueError):
        print(printable(redacted(message)), file=sys.stderr)


def flush_output() -> None:
    """Hands on what was printed, so that it fails here, where it can be told, and not as the interpreter ends.

    Raises:
        OSError: nobody reads it any more, or it does not fit the disk.
    """
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def drop_output() -> None:
    """Lets go of what was printed and of what is still to be: it cannot be written."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
