"""What a terminal shows while a command works, and what a log gets."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from tokenloom.cli.progress_display import AboveLine, ChangingLine, TerminalReporter
from tokenloom.progress import Task, Wait
from tokenloom.rendering.progress_words import Amounts
from tokenloom.rendering.words import cell_width

ERASE = "\r\x1b[2K"


class Terminal:
    """A terminal of so many columns, and what was written to it."""

    def __init__(self, width: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.stream: TextIO = os.fdopen(self.slave, "w", encoding="utf-8")

    def written(self) -> str:
        """Returns what was written since the last call."""
        found = b""
        while select.select([self.master], [], [], 0)[0]:
            found += os.read(self.master, 1 << 16)
        return found.decode().replace("\r\n", "\n")


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    opened = Terminal(getattr(request, "param", 80))
    yield opened
    opened.stream.close()
    os.close(opened.master)


def bytes_task(description: str, done: int, total: int | None = None, *notes: str) -> Task:
    made = Task(description, Amounts("bytes", 0, total))
    made.tell(done, total=total, notes=notes)
    return made


@pytest.mark.parametrize("terminal", [60, 200], indirect=True)
def test_a_line_fits_the_terminal(terminal):
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    job = bytes_task("preprocess", 1_200_000_000, 2_800_000_000, "12 rejected", "shards 4 of 11")
    job.started -= 60
    reporter.look([job], [])
    [text] = terminal.written().split(ERASE)[1:]
    width = os.get_terminal_size(terminal.slave).columns
    assert cell_width(text) < width
    assert {"preprocess", "42 %", "20 MB/s", "12 rejected", "shards 4/11"} <= set(text.split("  "))
    assert "1:20" in text
    assert ("█" in text, "1.2 of 2.8 GB" in text) == (width >= 80, width >= 200)


def test_a_line_changes_in_its_place_and_goes(terminal):
    line = ChangingLine(terminal.stream)
    reporter = TerminalReporter(line, clock=lambda: 0.0)
    merge = bytes_task("merge", 0)
    reporter.look([merge], [])
    reporter.look([merge], [])
    merge(1000)
    reporter.look([merge], [])
    reporter.end(merge, is_complete=True)
    assert terminal.written() == f"{ERASE}merge  0 bytes{ERASE}merge  1 kB{ERASE}"
    reporter.look([], [])
    assert terminal.written() == ""


def test_what_is_printed_meanwhile_stands_above_the_line(terminal):
    line = ChangingLine(terminal.stream)
    stderr = AboveLine(terminal.stream, line)
    line.show("merge  1 kB")
    print("warning: odd", file=stderr)  # type: ignore[call-overload]  # it is a stream as far as `print` goes
    line.show("merge  1 kB")
    assert terminal.written() == f"{ERASE}merge  1 kB{ERASE}warning: odd\n{ERASE}merge  1 kB"
    assert stderr.isatty()


def test_a_wait_stays_on_the_screen(terminal):
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    wait = Wait("an answer of `http://a:secret@b`", "AWS_ENDPOINT_URL names it")
    wait.started -= 6
    reporter.look([], [wait])
    reporter.look([], [wait])
    assert terminal.written() == ("waiting for an answer of `http://…@b` for 6 s (AWS_ENDPOINT_URL names it)\n")
