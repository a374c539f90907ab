"""Lines for a terminal, and text that cannot drive it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.progress_words import Amounts, Speed, plain_line
from tokenloom.rendering.words import cell_width, lines_of, printable, short, size


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("plain", 5), ("naïve", 5), ("漢字", 4), ("\uff46\uff55", 4), ("e\u0301", 1), ("\u1112\u1161\u11ab", 2)],
)
def test_widths_are_columns(text, columns):
    assert cell_width(text) == columns


def test_lines_are_broken_between_words():
    assert list(lines_of("one two three", 8)) == ["one two", "three"]
    assert list(lines_of("    indented text", 12)) == ["    indented", "text"]
    assert list(lines_of("漢字漢字", 5)) == ["漢字", "漢字"]
    assert list(lines_of("[red]abc[/red]", 3)) == ["[re", "d]a", "bc[", "/re", "d]"]
    assert list(lines_of("", 8)) == [""]
    assert list(lines_of("0000\xa0", 4)) == ["0000"]
    pieces = [("a", "bold red"), (" b", "")]  # styles are written where colours are
    assert list(lines_of(pieces, 8, colour=True)) == ["\x1b[1;31ma\x1b[0m b"]
    assert list(lines_of(pieces, 8)) == ["a b"]


WRITTEN = ["naïve 漢字\u3000全角", "\u00a0", "\u0645\u06cc\u200c\u062e", "👩\u200d🔬", "é\u0301", "a\tb\n"]


@given(st.text() | st.text(" ab漢\u0301\u200d"), st.integers(4, 30))
def test_lines_hold_all_of_the_text_and_fit(text, width):
    found = list(lines_of(printable(text, keep=""), width))
    assert "".join("".join(found).split()) == "".join(printable(text, keep="").split())
    assert all(cell_width(line) <= width for line in found)


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
        *((text, text) for text in WRITTEN),
    ],
)
def test_what_has_no_glyph_is_escaped_and_what_people_write_stays(text: str, shown: str):
    assert printable(text) == shown


@given(st.text())
def test_nothing_is_left_that_has_no_glyph(text: str):
    left = {unicodedata.category(char) for char in printable(text, keep="")}
    left &= {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
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


JOB = Amounts("bytes", 1_204_000_000, 2_800_000_000, 257_000_000, ("0 rejected", "shards 4 of 11"))
SAID = "x: 43 % (1.2 of 2.8 GB), 19 s left, 85 MB/s, 21.4M tokens/s, 0 rejected, shards 4 of 11"


@pytest.mark.parametrize(
    ("amounts", "speed", "line"),
    [
        (JOB, Speed(85e6, 21.4e6), SAID),
        (Amounts("bytes", 0, None), Speed(), "x: 0 bytes"),
        (Amounts("bytes", 5_000_000, None), Speed(900.0), "x: 5 MB, 900 B/s"),
        (Amounts("bytes", 999, 5_000), Speed(), "x: 19 % (999 bytes of 5 kB)"),
        (Amounts("bytes", 0, 0), Speed(), "x: 0 bytes"),
        (Amounts("sections", 3, 14), Speed(0.1), "x: 21 % (3 of 14 sections), 1 min 50 s left"),
        (Amounts("rows", 3 * 10**6, 4 * 10**6), Speed(5e4), "x: 75 % (3M of 4M rows), 20 s left, 50,000 rows/s"),
        (Amounts("documents", 1, None), Speed(), "x: 1 document"),
        (Amounts("bytes", 999_000, 1_000_000), Speed(), "x: 99 % (999 kB of 1 MB)"),
    ],
)  # fmt: skip
def test_a_line_says_what_is_known(amounts, speed, line):
    assert plain_line("x", amounts, speed) == line
