"""The pairs of a catalogue."""

from __future__ import annotations

from tests.report.pages import words_of

from tokenloom import build_catalogue
from tokenloom.inspect.target import open_target
from tokenloom.report.options import ReportOptions
from tokenloom.report.parts_section import parts_section


def test_parts_are_told_the_largest_first(write_pair, tmp_path):
    one, two, three = write_pair([2], "one"), write_pair([5, 3], "two"), write_pair([], "three")
    build_catalogue([one, two, three], f"{tmp_path}/all")
    section = parts_section(open_target([f"{tmp_path}/all"]), ReportOptions())
    words = words_of(section.html)
    assert words.startswith("3 pairs, the largest first")
    assert words.index(f"{two} 2 2 16 bytes 80%") < words.index(f"{one} 1 1 4 bytes 20%")
    assert section.findings == [f"1 part without tokens, such as {three}."]


def test_a_pair_has_no_parts(write_pair):
    assert parts_section(open_target([write_pair([2])]), ReportOptions()) is None
