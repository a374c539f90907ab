"""Tables that fit a terminal, and documents and samples on stdout."""

from __future__ import annotations

import io
import re
import sys

import pytest
from tests.inspect.drawn import sample

from tokenloom.cli.output import look_of, print_lines, table
from tokenloom.inspect.shown import shown_lines
from tokenloom.rendering.words import cell_width, printable

PLAN = ("dataset", "tokens", "weight")
ROWS = [("demo-output/corpus/train_text_document", "1,234,567", "0.75"), ("b", "12", "0.25")]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout looks like a terminal of 60 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")


def test_a_narrow_terminal_folds_no_name(columns, capsys):
    print_lines(table(PLAN, ROWS, title="a plan"))
    lines = re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()
    assert any("demo-output/corpu…ain_text_document   1,234,567     0.75" in line for line in lines)
    assert max(map(cell_width, lines)) <= 60


def test_a_program_gets_whole_lines(capsys):
    print_lines(table(PLAN, ROWS))
    assert "demo-output/corpus/train_text_document" in capsys.readouterr().out


class Terminal(io.TextIOWrapper):
    """A terminal of some encoding."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self):
        return True

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def on_terminal(monkeypatch, *, columns=50):
    """Puts a terminal in the place of stdout; not in a fixture, after which pytest takes stdout again."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return sys.stdout


def test_a_terminal_has_colours_and_its_own_width(monkeypatch):
    terminal = on_terminal(monkeypatch)
    assert (look_of().colour, look_of().width, look_of().ids) == (True, 50, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not look_of().colour
    monkeypatch.delenv("NO_COLOR")
    assert look_of(ids=True).ids
    print_lines(shown_lines(sample(), look_of()))
    assert "\x1b[7;33m<eod>\x1b[0m" in terminal.text()
    assert "\x1b[1m── document 5 of web, all 5 tokens ───────────────\x1b[0m\n" in terminal.text()


def test_a_log_has_marks_and_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    assert (look_of().colour, look_of().width) == (False, 80)
    print_lines(shown_lines(sample(), look_of(most_tokens=2)))
    out = capsys.readouterr().out
    assert "[without loss][BOS <s>]\n[3 more tokens]\n[with loss][EOD <eod>]\n" in out
    assert "\x1b" not in out


def test_visible_text_is_what_stdout_can_take(monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal := Terminal("ascii"))
    print_lines([printable("na\u00efve\x1b\n\t")])
    assert terminal.text() == "na\\xefve\\x1b\n\t\n"
