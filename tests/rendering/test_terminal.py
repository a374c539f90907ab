"""Lines for a terminal, and text that cannot drive it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.plain import printable
from tokenloom.rendering.terminal import Piece, cell_width, folded
from tokenloom.rendering.words import short, size


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


@given(st.text() | st.text(" ab漢\u0301\u200d"), st.integers(2, 30))
def test_lines_hold_all_of_the_text_and_fit(text, width):
    found = lines(text, width)
    assert "".join(found) == text
    assert all(cell_width(line) <= width for line in found)
    joins = {"Mn", "Me", "Cf"}
    assert not any(unicodedata.category(line[0]) in joins for line in found[1:])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 100 %", "plain text, 100 %"),
        ("\x1b[31mred\x07\x00", r"\x1b[31mred\x07\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202egnp.exe", r"a\u202egnp.exe"),
        ("\u2066\u2069\u061c\u200f", r"\u2066\u2069\u061c\u200f"),
        ("a\u200bb\u00adc\ufeffd", r"a\u200bb\xadc\ufeffd"),
        ("one\u2028two\u2029", r"one\u2028two\u2029"),
        ("\r\n", "\\r\n"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_has_no_glyph_is_escaped(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text", ["naïve 漢字\u3000全角", "\u00a0", "\u0645\u06cc\u200c\u062e", "👩\u200d🔬", "é\u0301", "a\tb\n"]
)
def test_what_people_write_stays(text: str):
    assert printable(text) == text


@given(st.text())
def test_nothing_is_left_that_has_no_glyph(text: str):
    left = {unicodedata.category(char) for char in printable(text, keep="")} & {
        "Cc",
        "Cf",
        "Cn",
        "Co",
        "Cs",
        "Zl",
        "Zp",
    }
    assert left <= ({"Cf"} if set(text) & {"\u200c", "\u200d"} else set())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (999_999, "999,999"), (1_000_000, "1M"), (1_234_567, "1.23M"), (900 * 10**9, "900B"),
        (15 * 10**12, "15T"), (12_345 * 10**12, "12,345T"),
    ],
)  # fmt: skip
def test_numbers_fit_eight_columns(number, text):
    assert short(number) == text
    assert len(text) <= 8


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (1000, "1 kB"), (1_234_567_890, "1.23 GB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes_have_three_digits(num_bytes: int, said: str):
    assert size(num_bytes) == said
