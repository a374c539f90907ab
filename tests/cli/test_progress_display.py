"""What a terminal shows while a command works, and what a log gets."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest
from tests.preprocess.corpus import byte_level_json, write_lines

from tokenloom.cli.progress_display import AboveLine, ChangingLine, TerminalReporter, is_animated, progress_shown
from tokenloom.progress import Task, Wait, task
from tokenloom.rendering.progress_words import Amounts
from tokenloom.rendering.terminal import cell_width

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


@pytest.mark.parametrize("terminal", [60, 80, 100, 200], indirect=True)
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


def test_the_part_that_is_worked_on_stands_in_the_line(terminal):
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    build, index = Task("build", Amounts("datasets", 1, 4)), bytes_task("index of `a`", 43, 100)
    reporter.look([build, index], [])
    assert "index of `a` 43 %" in terminal.written()
    reporter.end(index, is_complete=True)
    assert terminal.written() == ""


def test_a_wait_stays_on_the_screen(terminal):
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    wait = Wait("an answer of `http://a:secret@b`", "AWS_ENDPOINT_URL names it")
    wait.started -= 6
    reporter.look([], [wait])
    reporter.look([], [wait])
    assert terminal.written() == ("waiting for an answer of `http://…@b` for 6 s (AWS_ENDPOINT_URL names it)\n")


def test_names_cannot_drive_the_terminal(terminal):
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    reporter.look([bytes_task("a\x1b[2Jb\nc", 0)], [])
    assert terminal.written() == f"{ERASE}a\\x1b[2Jb\\nc  0 bytes"


def test_a_terminal_without_utf8_gets_plain_characters(terminal):
    terminal.stream.reconfigure(encoding="ascii")  # type: ignore[attr-defined]
    reporter = TerminalReporter(ChangingLine(terminal.stream))
    reporter.look([bytes_task("merge", 500, 1000)], [])
    assert "####" in terminal.written()


def test_only_a_terminal_that_can_is_animated(terminal, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    assert is_animated(terminal.stream)
    assert not is_animated(None)
    with open(tmp_path / "log", "w") as log:
        assert not is_animated(log)
    assert not is_animated(log)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_animated(terminal.stream)


def test_stderr_is_as_it_was_afterwards(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with progress_shown():
        assert isinstance(sys.stderr, AboveLine)
    assert sys.stderr is terminal.stream


def test_a_log_gets_nothing_of_a_short_run(capsys):
    with progress_shown(), task("merge", unit="bytes") as advance:
        advance(5)
    assert capsys.readouterr().err == ""


def test_a_command_on_a_terminal_of_60_columns(tmp_path):
    write_lines(tmp_path / "in.jsonl", [{"text": "alpha beta " * 300}] * 20_000)
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    terminal = Terminal(60)
    command = [sys.executable, "-m", "tokenloom.cli", "preprocess", str(tmp_path / "in.jsonl"), "--workers", "1"]
    command += ["--tokenizer", str(tmp_path / "tokenizer.json"), "--output-prefix", str(tmp_path / "out")]
    process = subprocess.Popen(
        [*command, "--engine", "tokenizers", "--shard-size", "5MB"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal.slave,
        env={**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    terminal.stream.close()
    try:
        seen = read_until(terminal.master, re.compile(rb"preprocess  \d+ %.*B/s.*shards \d+/\d+"))
        process.send_signal(signal.SIGINT)
        seen += read_until(terminal.master, None)
    finally:
        process.kill()
        process.communicate()
        os.close(terminal.master)
    text = seen.decode().replace("\r\n", "\n")
    assert process.returncode == 130, text
    *lines, last = text.split(ERASE)
    assert lines[1:], text
    assert max(map(cell_width, lines)) < 60, lines
    assert re.fullmatch(
        r"interrupted; (nothing was written: run the same command again to begin anew"
        r"|\d+ of \d+ shards (is|are) done: run the same command again to go on)\n",
        last,
    )


def read_until(descriptor: int, wanted: re.Pattern[bytes] | None) -> bytes:
    """Returns what comes until something is among it, or until its end."""
    found, deadline = b"", time.monotonic() + 60
    while wanted is None or not wanted.search(found):
        assert time.monotonic() < deadline, found
        if select.select([descriptor], [], [], 1.0)[0]:
            data = b""
            with suppress(OSError):  # what the end of a terminal is
                data = os.read(descriptor, 1 << 16)
            if not data:
                break
            found += data
    return found
