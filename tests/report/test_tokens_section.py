"""What tokens there are, and what is odd about them."""

from __future__ import annotations

import re

from tests.report.pages import words_of

from tokenloom.inspect.target import open_target
from tokenloom.report.options import ReportOptions
from tokenloom.report.tokens_section import tokens_section

EOD = 256


def section_of(*words: str, tokenizer: str | None = "byte"):
    return tokens_section(open_target(list(words), tokenizer=tokenizer), ReportOptions())


def test_tokens_are_told_by_their_texts(write_pair):
    section = section_of(write_pair([[*b"abcdefg <", EOD]] * 50))
    words = words_of(section.html)
    assert "tokens per byte of text 1.000, of single stretches 1.000 to 1.000 (90%)" in words
    assert "end with EOD 100% of" in words
    assert "'<'" in words
    assert "<|endoftext|>" in words or "256" in words
    assert section.findings == []


def test_without_a_tokenizer_ids_are_told(write_pair):
    section = section_of(write_pair([[5, 6, 7, 8, 9, 10]] * 50), tokenizer=None)
    words = words_of(section.html)
    assert "tokens per byte" not in words
    assert "EOD" not in words
    assert "id of the sample" in words


def test_what_is_odd_is_told(write_pair):
    findings = section_of(write_pair([[*b"aaaaaaaab"]] * 50)).findings
    assert re.fullmatch(r"None of \d+ documents looked at end with EOD\.", findings[0])
    assert findings[1].startswith("Token 97, 'a', is 8")
    assert findings[1].endswith("% of all tokens looked at.")
    half = section_of(write_pair([[*b"abc"], [*b"abc", EOD]] * 50, "half")).findings
    assert re.fullmatch(r"Only [\d.]+% of \d+ documents looked at end with EOD\.", half[0])


def test_there_is_nothing_to_say_of_nothing(write_pair):
    assert section_of(write_pair([])) is None


def test_ids_beyond_the_tokenizer_are_told(write_pair):
    assert "could not be decoded" in section_of(write_pair([[60_000, 60_001]])).html
