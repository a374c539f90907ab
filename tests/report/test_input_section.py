"""What became of the input of a corpus."""

from __future__ import annotations

from tests.report.pages import words_of

from tokenloom.inspect.target import open_target
from tokenloom.report.input_section import input_section
from tokenloom.report.options import ReportOptions


def test_records_are_told_by_what_became_of_them(corpus):
    section = input_section(open_target([corpus]), ReportOptions())
    words = words_of(section.html)
    assert "read 13 100% kept 8 61.5% rejected: unusable, and set aside 3 23.1%" in words
    assert "blank: nothing but white space 1 7.69%" in words
    assert "duplicates of records that were kept 1 7.69%" in words
    assert "empty" not in words
    assert "Why records were rejected: 3 records, the most frequent reason first" in words
    assert words.index("no key 'text'") < words.index("not JSON")
    assert section.findings == [
        "23.1% of the records of the input were rejected: 3; the most frequent reason: no key 'text'; found 'no'."
    ]


def test_names_and_records_of_strangers_are_texts(corpus):
    html = input_section(open_target([corpus]), ReportOptions()).html
    assert "in&lt;i&gt;.jsonl" in html
    assert "{\\x1b" in html
    assert "<i>" not in html
    assert "\x1b" not in html


def test_data_without_manifest_have_no_input(write_pair, corpus):
    bare = write_pair([1], "bare")
    assert input_section(open_target([bare]), ReportOptions()) is None
    words = words_of(input_section(open_target([bare, corpus]), ReportOptions()).html)
    assert "1 of 2 datasets have no manifest, and are not counted." in words


def test_what_was_rejected_may_be_gone(corpus, tmp_path):
    (tmp_path / "in.rejected.jsonl").unlink()
    section = input_section(open_target([corpus]), ReportOptions())
    assert section.findings == ["23.1% of the records of the input were rejected: 3."]
