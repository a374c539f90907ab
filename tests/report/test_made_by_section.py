"""What data were made by."""

from __future__ import annotations

from tests.report.pages import words_of

from tokenloom.inspect.target import open_target
from tokenloom.report.made_by_section import made_by_section
from tokenloom.report.options import ReportOptions


def test_the_maker_is_told(corpus):
    section = made_by_section(open_target([corpus]), ReportOptions())
    words = words_of(section.html)
    assert "tokenizer byte" in words
    assert "before each document nothing after each document" in words
    assert "drop_duplicates true" in words
    assert section.findings == []


def test_what_does_not_agree_is_told(write_pair, corpus, make_corpus):
    bare, other = write_pair([1], "bare"), make_corpus("other", append_eod=False)
    section = made_by_section(open_target([corpus, other, bare]), ReportOptions())
    assert section.html.count("<h3>") == 2
    assert section.findings == [
        f"Without a manifest, nobody knows what {bare} was made by, or whether it is still whole.",
        "The data were made by 2 tokenizers: their ids do not mean the same.",
        f"Nothing marks the end of a document (EOD) in {other}.",
    ]


def test_another_tokenizer_than_the_maker_is_told(corpus):
    target = open_target([corpus], tokenizer="null:300")
    assert made_by_section(target, ReportOptions()).findings == [
        f"Texts of {corpus} are shown by another tokenizer than the one that made them."
    ]
    assert made_by_section(open_target([corpus], tokenizer="byte"), ReportOptions()).findings == []
