"""How many documents and tokens there are, and what is odd about their lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.pages import words_of

from tokenloom.errors import DatasetFormatError
from tokenloom.inspect.target import open_target
from tokenloom.report.documents_section import documents_section
from tokenloom.report.options import ReportOptions


def section_of(*words: str):
    return documents_section(open_target(list(words)), ReportOptions())


def test_a_pair_is_counted(write_pair):
    found = section_of(write_pair([1, 2, 0, 9]))
    words = words_of(found.html)
    assert "documents 4 tokens 12 bytes of tokens 24 dtype uint16 documents without tokens 1" in words
    assert "shortest document with tokens 1 token, document 0 longest document 9 tokens, document 3" in words
    assert "50% 1" in words
    assert [chart.id for chart in found.charts] == ["document-lengths", "tokens-by-length"]
    assert sum(found.charts[0].series[0].values) == 3
    assert sum(found.charts[1].series[0].values) == 12


def test_a_blend_is_counted_by_source(write_pair):
    one, two = write_pair([1, 2], "one"), write_pair([9], "two")
    found = section_of("30", one, "10", two)
    words = words_of(found.html)
    assert "2 sources, the largest first source documents tokens of all tokens weight" in words
    assert words.index(f"{two} 1 9 75% 25%") < words.index(f"{one} 2 3 25% 75%")
    assert f"longest document 9 tokens, document 0 of {two}" in words


def test_what_is_odd_is_told(write_pair):
    found = section_of(write_pair([10] * 50 + [0] * 5 + [400, *range(20, 65)]))
    assert found.findings == [
        "4.95% of the documents have no tokens.",
        "Document 55 alone holds 14.3% of all tokens.",
        "49.5% of the documents have exactly 10 tokens: were they cut?",
    ]
    assert section_of(write_pair(range(1, 200), "fine")).findings == []


@pytest.mark.parametrize(
    ("documents", "finding"), [([], "There is no document at all."), ([0], "No document has a token.")]
)
def test_nothing_has_no_charts(write_pair, documents, finding):
    found = section_of(write_pair(documents))
    assert (list(found.charts), list(found.findings)) == ([], [finding])


def test_a_damaged_index_is_refused(write_pair):
    prefix = write_pair([3, 4])
    index = Path(f"{prefix}.idx")
    data = bytearray(index.read_bytes())
    data[34:38] = (9).to_bytes(4, "little")
    index.write_bytes(data)
    with pytest.raises(DatasetFormatError):
        section_of(prefix)
