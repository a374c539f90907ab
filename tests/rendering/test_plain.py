"""Text that cannot drive a terminal or turn a page around."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.plain import printable


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


def test_kept_characters_are_the_callers_choice():
    assert printable("a\tb\n", keep="") == r"a\tb\n"
    assert printable("a\x1b", keep="\x1b") == "a\x1b"


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
