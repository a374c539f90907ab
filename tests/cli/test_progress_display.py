"""What a terminal shows while a command works, and what a log gets."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from tokenloom.cli.progress_display import TerminalReporter
from tokenloom.progress import Task, Wait
from tokenloom.rendering.progress_words import Amounts


class Terminal:
    """A terminal, and what was written to it."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")

    def written(self) -> str:
        """Returns what was written since the last call."""
        found = b""
        while select.select([self.master], [], [], 0)[0]:
            found += os.read(self.master, 1 << 16)
        return found.decode().replace("\r\n", "\n")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.stream.close()
    os.close(opened.master)


def bytes_task(description: str, done: int, total: int | None = None, *notes: str) -> Task:
    made = Task(description, Amounts("bytes", 0, total))
    made.tell(done, total=total, notes=notes)
    return made


def shown(text: str) -> list[str]:
    """Returns what stood on the changing line, one after the other, without what moves the cursor."""
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]|\r", "\n", text).split("\n")
    return [line for line, _ in itertools.groupby(filter(None, lines))]


@pytest.mark.parametrize("width", [60, 200])
def test_a_line_fits_the_terminal(terminal, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    reporter = TerminalReporter(terminal.stream)
    job = bytes_task("preprocess", 1_200_000_000, 2_800_000_000, "12 rejected", "shards 4 of 11")
    job.started -= 60
    reporter.look([job], [])
    [text] = shown(terminal.written())
    reporter.hide()
    whole = "preprocess: 42 % (1.2 of 2.8 GB), 1 min 20 s left, 20 MB/s, 12 rejected, shards 4 of 11"
    assert text == (whole if width == 200 else whole[: width - 1] + "…")


def test_a_line_changes_in_its_place_and_goes(terminal):
    reporter = TerminalReporter(terminal.stream, clock=lambda: 0.0)
    merge = bytes_task("merge", 0)
    reporter.look([merge], [])
    merge(1000)
    reporter.look([merge], [])
    print("warning: odd", file=sys.stderr)
    reporter.end(merge, is_complete=True)
    written = terminal.written()
    assert shown(written) == ["merge: 0 bytes", "merge: 1 kB", "warning: odd", "merge: 1 kB"]
    assert written.endswith("\x1b[2K")  # the line is gone
    reporter.look([], [])
    assert terminal.written() == ""


def test_a_wait_stays_on_the_screen(terminal, capsys):
    reporter = TerminalReporter(terminal.stream)
    wait = Wait("an answer of `http://a:secret@b`", "AWS_ENDPOINT_URL names it")
    wait.started -= 6
    reporter.look([], [wait])
    reporter.look([], [wait])
    assert capsys.readouterr().err == "waiting for an answer of `http://…@b` for 6 s (AWS_ENDPOINT_URL names it)\n"
