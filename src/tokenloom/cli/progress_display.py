"""How a command shows how far it is, on stderr: a line that changes on a terminal, lines from time to time in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TextIO
from weakref import WeakKeyDictionary

from tokenloom.cli.stopping import say
from tokenloom.progress import LineReporter, Task, Wait, WaitLines, reporting_to
from tokenloom.rendering.progress_words import Amounts, Pace, fitted_line
from tokenloom.rendering.words import printable
from tokenloom.storage.secrets import redacted

_SECONDS_BETWEEN_LOOKS = 0.2
_ERASE = "\r\x1b[2K"
_USUAL_WIDTH = 80


@contextmanager
def progress_shown() -> Iterator[None]:
    """Shows on stderr how far a command is, for as long as the `with` block lasts."""
    stream = sys.stderr
    if not is_animated(stream):
        with reporting_to(LineReporter(say, say)):
            yield
        return
    line = ChangingLine(stream)
    sys.stderr = AboveLine(stream, line)
    try:
        with reporting_to(TerminalReporter(line)):
            yield
    finally:
        line.show("")
        sys.stderr = stream


def is_animated(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal on which a line can change."""
    with suppress(ValueError):  # closed
        return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return False


class ChangingLine:
    """The last line of a terminal, which shows something that changes.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""
        self._lock = threading.RLock()  # a signal may come in the middle

    def width(self) -> int:
        """Returns how many columns a line may take."""
        with suppress(OSError, ValueError):
            if columns := os.get_terminal_size(self._stream.fileno()).columns:
                return columns - 1  # in the last one, some terminals begin a new line
        return _USUAL_WIDTH - 1

    def can_blocks(self) -> bool:
        """Whether a bar may be of blocks."""
        return (self._stream.encoding or "").lower().startswith("utf")

    def show(self, text: str) -> None:
        """Shows a text in place of the one before; "" for none."""
        with self._lock:
            if text != self._shown and self._is_ours():
                self._write(_ERASE + text)
                self._shown = text

    def print_above(self, text: str) -> None:
        """Writes something that stays; the line is shown again with its next change."""
        with self._lock:
            self._write((_ERASE if self._shown else "") + text)
            self._shown = ""

    def _is_ours(self) -> bool:
        """Whether this process may write on the terminal: one in the background would write into another's line."""
        with suppress(OSError, ValueError):
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        return True

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a terminal that is gone
            self._stream.write(text)
            self._stream.flush()


class AboveLine:
    """Stderr while a line changes below it."""

    def __init__(self, stream: TextIO, line: ChangingLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        self._line.print_above(text)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TerminalReporter:
    """Shows the outermost task on a line that changes, and waits above it.

    Args:
        line: the line.
        clock: the monotonic clock.
    """

    def __init__(self, line: ChangingLine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds_between_looks = _SECONDS_BETWEEN_LOOKS
        self._line = line
        self._clock = clock
        self._waits = WaitLines()
        self._paces: WeakKeyDictionary[Task, Pace] = WeakKeyDictionary()
        self._shown: Task | None = None

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        now = self._clock()
        for text in self._waits.lines(tasks, waits, now):
            self._line.print_above(f"{_harmless(text)}\n")
        if tasks:
            self._shown = tasks[0]
            self._line.show(self._words(tasks, now))

    def end(self, task: Task, *, is_complete: bool) -> None:
        if task is self._shown:
            self._shown = None
            self._line.show("")

    def _words(self, tasks: Sequence[Task], now: float) -> str:
        first, *inner = tasks
        amounts = first.amounts()
        pace = self._paces.setdefault(first, Pace(first.started, first.before))
        pace.add(now, amounts)
        if inner:
            amounts = replace(amounts, notes=(*amounts.notes, _part(inner[-1].description, inner[-1].amounts())))
        blocks = "█░" if self._line.can_blocks() else "#-"
        return fitted_line(
            _harmless(first.description),
            replace(amounts, notes=tuple(map(_harmless, amounts.notes))),
            pace.speed(),
            self._line.width(),
            full=blocks[0],
            empty=blocks[1],
        )


def _part(description: str, amounts: Amounts) -> str:
    return f"{description} {100 * amounts.done // amounts.total} %" if amounts.total else description


def _harmless(text: str) -> str:
    return printable(redacted(text), keep="")
