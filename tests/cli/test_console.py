"""Tables that fit a terminal: names are shortened, or rows become blocks; a program gets whole lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.cli.output import blocks, print_lines, shortened, table
from tokenloom.rendering.words import cell_width

PLAN = ("dataset", "tokens", "weight")
ROWS = [("demo-output/corpus/train_text_document", "1,234,567", "0.75"), ("b", "12", "0.25")]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout looks like a terminal of 60 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")


def test_what_does_not_fit_so_becomes_blocks():
    assert shortened(PLAN, ROWS, 40) is None
    assert list(blocks(PLAN, ROWS, 40)) == [
        "demo-output/corpus/train_text_document",
        "  tokens 1,234,567, weight 0.75",
        "b",
        "  tokens 12, weight 0.25",
    ]


@given(
    rows=st.lists(st.tuples(*[st.text("ab /漢é", max_size=60)] * 3), min_size=1, max_size=4),
    width=st.integers(12, 120),
)
def test_nothing_is_wider_than_the_terminal(rows, width):
    assert all(cell_width(line) <= width for line in blocks(PLAN, rows, width))


def test_a_narrow_terminal_folds_no_name(columns, capsys):
    print_lines(table(PLAN, ROWS, title="a plan"))
    lines = re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()
    assert any("demo-output/corpu…ain_text_document   1,234,567     0.75" in line for line in lines)
    assert max(map(cell_width, lines)) <= 60


def test_a_program_gets_whole_lines(capsys):
    print_lines(table(PLAN, ROWS))
    assert "demo-output/corpus/train_text_document" in capsys.readouterr().out
