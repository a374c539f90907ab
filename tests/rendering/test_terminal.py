"""Lines for a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.terminal import Piece, apart, cell_width, folded, plain_text, written


def lines(text: str, width: int) -> list[str]:
    return ["".join(piece.text for piece in line) for line in folded([Piece(text)], width)]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("plain", 5),
        ("naïve", 5),
        ("漢字", 4),
        ("\uff46\uff55", 4),
        ("e\u0301", 1),
        ("\u1112\u1161\u11ab", 2),
        ("👩\u200d🔬", 4),
    ],
)
def test_widths_are_columns(text, columns):
    assert cell_width(text) == columns


def test_lines_are_broken_after_a_space_of_their_last_half():
    assert lines("one two three", 8) == ["one two ", "three"]
    assert lines("a bcdefghijk", 6) == ["a bcde", "fghijk"]
    assert lines("漢字漢字", 5) == ["漢字", "漢字"]
    assert lines("abc", 3) == ["abc"]
    assert lines("abce\u0301", 4) == ["abce\u0301"]
    assert lines("ab \u0301cd", 4) == ["ab \u0301c", "d"]
    assert lines("0 \u03000", 2) == ["0 \u0300", "0"]
    assert lines("one two three", 0) == ["one two three"]
    assert lines("", 8) == []


def test_styles_stay_with_their_text():
    assert list(folded([Piece("ab", "1"), Piece("cd"), Piece("ef", "2")], 3)) == [
        [Piece("ab", "1"), Piece("c")],
        [Piece("d"), Piece("ef", "2")],
    ]
    assert written([Piece("ab", "1;2"), Piece("c")], colour=True) == "\x1b[1;2mab\x1b[0mc"
    assert written([Piece("ab", "1;2"), Piece("c")], colour=False) == "abc"


def test_what_an_encoding_lacks_becomes_escapes():
    assert plain_text("na\u00efve \u6f22\x1b\n", "ascii") == r"na\xefve \u6f22\x1b\n"
    assert plain_text("na\u00efve \u6f22\x1b\n", "latin-1", keep="\n") == "na\u00efve \\u6f22\\x1b\n"
    assert plain_text("\ud800", "utf-8") == r"\ud800"


def test_nothing_joins_what_is_before_it():
    assert apart("\u200d\u200ca") == r"\u200d\u200ca"
    assert apart("\u0301a") == "\u25cc\u0301a"
    assert apart("a\u0301") == "a\u0301"
    assert apart("") == ""


@given(st.text() | st.text(" ab漢\u0301\u200d"), st.integers(2, 30))
def test_lines_hold_all_of_the_text_and_fit(text, width):
    found = lines(text, width)
    assert "".join(found) == text
    assert all(cell_width(line) <= width for line in found)
    joins = {"Mn", "Me", "Cf"}
    assert not any(unicodedata.category(line[0]) in joins for line in found[1:])
