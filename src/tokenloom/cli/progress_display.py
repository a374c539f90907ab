"""How a command shows how far it is, on stderr: a line that changes on a terminal, lines from time to time in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO
from weakref import WeakKeyDictionary

from tokenloom.cli.stopping import say
from tokenloom.progress import LineReporter, Task, Wait, WaitLines, inner_words, reporting_to
from tokenloom.rendering.progress_words import Pace, plain_line
from tokenloom.rendering.words import printable
from tokenloom.storage.secrets import redacted

if TYPE_CHECKING:
    from rich.live import Live

_SECONDS_BETWEEN_LOOKS = 0.2


@contextmanager
def progress_shown() -> Iterator[None]:
    """Shows on stderr how far a command is, for as long as the `with` block lasts."""
    if not is_animated(sys.stderr):
        with reporting_to(LineReporter(say, say)):
            yield
        return
    reporter = TerminalReporter(sys.stderr)
    try:
        with reporting_to(reporter):
            yield
    finally:
        reporter.hide()


def is_animated(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal on which a line can change, and this process is not in its background."""
    with suppress(ValueError, OSError):  # closed, or no terminal of this session
        if stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return False


class TerminalReporter:
    """Shows the outermost task on a line that changes, as far as it fits; what is printed meanwhile stands above it.

    Args:
        stream: the terminal.
        clock: the monotonic clock.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds_between_looks = _SECONDS_BETWEEN_LOOKS
        self._stream = stream
        self._clock = clock
        self._waits = WaitLines()
        self._paces: WeakKeyDictionary[Task, Pace] = WeakKeyDictionary()
        self._shown: Task | None = None
        self._line: Live | None = None

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        now = self._clock()
        for text in self._waits.lines(tasks, waits, now):
            say(text)
        if tasks:
            self._shown, *inner = tasks
            amounts = self._shown.amounts()
            pace = self._paces.setdefault(self._shown, Pace(self._shown.started, self._shown.before))
            pace.add(now, amounts)
            self._show(plain_line(self._shown.description, amounts, pace.speed(), inner=inner_words(inner)))

    def end(self, task: Task, *, is_complete: bool) -> None:
        if task is self._shown:
            self.hide()

    def hide(self) -> None:
        """Removes the line."""
        self._shown = None
        if self._line is not None:
            self._line.stop()
            self._line = None

    def _show(self, line: str) -> None:
        from rich.text import Text

        if self._line is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._line = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._line.start()
        text = Text(printable(redacted(line), keep=""), no_wrap=True, overflow="ellipsis")
        self._line.update(text, refresh=True)
