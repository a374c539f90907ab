"""Tables that fit a terminal: names are shortened, or rows become blocks; a program gets whole lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.cli.console import blocks, print_table, shortened
from tokenloom.rendering.terminal import cell_width

PLAN = ("dataset", "tokens", "weight")
ROWS = [("demo-output/corpus/train_text_document", "1,234,567", "0.75"), ("b", "12", "0.25")]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout looks like a terminal of 60 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")


def test_a_table_that_fits_stays_as_it_is():
    assert shortened(PLAN, ROWS, 80) == ROWS


def test_long_names_are_shortened_in_their_middle():
    found = shortened(PLAN, ROWS, 60)
    assert found == [("demo-output/corpu…ain_text_document", "1,234,567", "0.75"), ("b", "12", "0.25")]


def test_what_does_not_fit_so_becomes_blocks():
    assert shortened(PLAN, ROWS, 40) is None
    assert list(blocks(PLAN, ROWS, 40)) == [
        "demo-output/corpus/train_text_document",
        "  tokens 1,234,567, weight 0.75",
        "b",
        "  tokens 12, weight 0.25",
    ]


def test_empty_cells_are_left_out_of_blocks():
    assert list(blocks(PLAN, [("total", "", "1")], 40)) == ["total", "  weight 1"]


def test_values_stand_behind_their_names_or_below_them():
    rows = [("documents", "12"), ("engine chosen", "it gives the same ids as the tokenizer itself")]
    assert list(blocks(("in.jsonl", ""), rows, 40)) == [
        "documents: 12",
        "engine chosen:",
        "  it gives the same ids as the",
        "  tokenizer itself",
    ]


@given(
    rows=st.lists(st.tuples(*[st.text("ab /漢é", max_size=60)] * 3), min_size=1, max_size=4),
    width=st.integers(12, 120),
)
def test_nothing_is_wider_than_the_terminal(rows, width):
    assert all(cell_width(line) <= width for line in blocks(PLAN, rows, width))


def test_a_narrow_terminal_folds_no_name(columns, capsys):
    print_table(PLAN, ROWS, title="a plan")
    lines = re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()
    assert any("demo-output/corpu…ain_text_document   1,234,567     0.75" in line for line in lines)
    assert max(map(cell_width, lines)) <= 60


def test_a_narrow_terminal_gets_blocks(columns, capsys):
    print_table(("x", ""), [("engine chosen", "a " * 60)], title="t")
    assert capsys.readouterr().out.splitlines()[:2] == ["t", "engine chosen:"]


def test_a_program_gets_whole_lines(capsys):
    print_table(PLAN, ROWS)
    assert "demo-output/corpus/train_text_document" in capsys.readouterr().out
