"""Report sections about datasets: documents, tokens, tokenizer, input records, examples."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from report_pages import words_of

from tokenloom_look.report.document_lengths import DocumentLengths
from tokenloom_look.report.documents_section import documents_section
from tokenloom_look.report.input_section import input_section
from tokenloom_look.report.made_by_section import made_by_section
from tokenloom_look.report.samples_section import samples_section, shown_documents_section
from tokenloom_look.report.section import ReportOptions
from tokenloom_look.report.tokens_section import tokens_section
from tokenloom_look.target import SampleSettings, open_target


def section_of(*words: str):
    return documents_section(open_target(list(words)), ReportOptions())


def test_a_pair_is_counted(write_pair):
    found = section_of(write_pair([1, 2, 0, 9]))
    words = words_of(found.html)
    assert "documents 4 tokens 12 bytes of tokens 24 dtype uint16 empty documents 1" in words
    assert "shortest non-empty document 1 token, document 0 longest document 9 tokens, document 3" in words
    assert "50% 1" in words
    assert [chart.id for chart in found.charts] == ["document-lengths", "tokens-by-length"]
    assert sum(found.charts[0].series[0].values) == 3
    assert sum(found.charts[1].series[0].values) == 12


def test_a_blend_is_counted_by_source(write_pair):
    one, two = write_pair([1, 2], "one"), write_pair([9], "two")
    found = section_of("30", one, "10", two)
    words = words_of(found.html)
    assert "2 sources, largest first source documents tokens share of tokens weight" in words
    assert words.index(f"{two} 1 9 75% 25%") < words.index(f"{one} 2 3 25% 75%")
    assert f"longest document 9 tokens, document 0 of {two}" in words


def test_odd_lengths_are_findings(write_pair):
    found = section_of(write_pair([10] * 50 + [0] * 5 + [400, *range(20, 65)]))
    assert found.findings == [
        "4.95% of the documents are empty.",
        "Document 55 alone has 14.3% of all tokens.",
        "49.5% of the documents have exactly 10 tokens: were they truncated?",
    ]
    assert section_of(write_pair(range(1, 200), "fine")).findings == []


EOD = 256


def tokens_of(*words: str, tokenizer: str | None = "byte"):
    return tokens_section(open_target(list(words), tokenizer=tokenizer), ReportOptions())


def test_tokens_are_shown_as_text(write_pair):
    section = tokens_of(write_pair([[*b"abcdefg <", EOD]] * 50))
    words = words_of(section.html)
    assert "tokens per byte of text 1.000" in words
    assert "end with EOD 100% of" in words
    assert "'<'" in words
    assert "<|endoftext|>" in words or "256" in words
    assert section.findings == []


def test_odd_tokens_are_findings(write_pair):
    findings = tokens_of(write_pair([[*b"aaaaaaaab"]] * 50)).findings
    assert re.fullmatch(r"None of \d+ documents in the sample end with EOD\.", findings[0])
    assert re.fullmatch(r"Token 97, 'a', is 8.*% of all tokens in the sample\.", findings[1])
    half = tokens_of(write_pair([[*b"abc"], [*b"abc", EOD]] * 50, "half")).findings
    assert re.fullmatch(r"Only [\d.]+% of \d+ documents in the sample end with EOD\.", half[0])


def test_provenance_is_shown(corpus):
    section = made_by_section(open_target([corpus]), ReportOptions())
    words = words_of(section.html)
    assert "tokenizer byte" in words
    assert "token before each document none token after each document" in words
    assert "drop_duplicates true" in words
    assert section.findings == []


def test_contradictions_are_findings(write_pair, corpus, make_corpus):
    bare, other = write_pair([1], "bare"), make_corpus("other", append_eod=False)
    section = made_by_section(open_target([corpus, other, bare]), ReportOptions())
    assert section.html.count("<h3>") == 2
    assert section.findings == [
        f"No manifest: tokenizer and integrity of {bare} are unknown.",
        "The data uses 2 different tokenizers, so equal ids have different meanings.",
        f"Documents of {other} do not end with an end-of-document token (EOD).",
    ]


def test_records_are_counted_by_outcome(corpus):
    section = input_section(open_target([corpus]), ReportOptions())
    words = words_of(section.html)
    assert "read 13 100% kept 8 61.5% rejected: unusable 3 23.1%" in words
    assert "blank: only white space 1 7.69%" in words
    assert "duplicates of kept records 1 7.69%" in words
    assert "empty" not in words
    assert "Reasons of 3 rejected records, most frequent first" in words
    assert words.index("no key 'text'") < words.index("not JSON")
    assert section.findings == [
        "23.1% of the input records were rejected: 3; most frequent reason: no key 'text'; found 'no'."
    ]


def target_of(*prefixes: str, length: int = 8):
    return open_target(list(prefixes), tokenizer="byte", settings=SampleSettings(sequence_length=length))


def ids_of(text: str) -> list[int]:
    return [*text.encode(), EOD]


def test_the_first_and_some_random_samples_are_shown(write_pair):
    target = target_of(write_pair([ids_of("some words")] * 40))
    found = samples_section(target, ReportOptions(num_samples_shown=3))
    words = words_of(found.html)
    assert words.count("Position ") == 3
    assert "Position 0" in words
    assert "Shown with 8 tokens per sample and seed 1234." in words
    assert words == words_of(samples_section(target, ReportOptions(num_samples_shown=3)).html)


def test_the_odd_documents_are_shown(write_pair):
    texts = ["first", *["middle"] * 30, "the longest of all", "", "s"]
    found = shown_documents_section(target_of(write_pair([ids_of(text) for text in texts])), ReportOptions())
    words = words_of(found.html)
    for heading in ("First document", "Longest document", "Shortest non-empty document", "the longest of all"):
        assert heading in words
    assert words.count("Random document") >= 3


def test_long_documents_and_samples_are_cut(write_pair):
    target = target_of(write_pair([ids_of("x" * 5000)]), length=4000)
    assert "4,701 more tokens are not shown." in shown_documents_section(target, ReportOptions()).html
    assert "3,401 more tokens are not shown." in samples_section(target, ReportOptions()).html
    assert len(samples_section(target, ReportOptions()).html) < 5000


LENGTHS = st.lists(st.integers(0, 2**34) | st.integers(0, 300) | st.integers(2**16 - 3, 2**16 + 3), max_size=60)


def counted(*lengths: int) -> DocumentLengths:
    rows = np.array(lengths, dtype=np.int64)
    bounds = np.arange(len(rows) + 1)
    counts = {"num_documents": len(rows), "num_tokens": sum(lengths), "idx_path": "lengths.idx"}
    return DocumentLengths([SimpleNamespace(sequence_lengths=rows, document_indices=bounds, **counts)])


@given(LENGTHS)
def test_counts_match_all_lengths(lengths):
    found = counted(*lengths)
    assert found.num_tokens == sum(lengths)
    filled = [length for length in lengths if length]
    if filled:
        assert (found.longest[0], found.shortest[0]) == (max(filled), min(filled))
        exact = np.percentile(lengths, [1, 50, 99], method="inverted_cdf")
        for near, value in zip(found.percentiles([1, 50, 99]), exact, strict=True):
            assert value / 1.016 <= near <= value
    bars = found.histogram()
    assert (np.diff(bars.edges) > 0).all()
    assert (bars.counts.sum(), bars.tokens.sum()) == (len(filled), sum(filled))
    for start, stop, count in zip(bars.edges, bars.edges[1:], bars.counts, strict=False):
        assert count == sum(start <= length < stop for length in filled)
    assert 0 <= found.share_of_tokens_in_longest(0.01) <= 1
