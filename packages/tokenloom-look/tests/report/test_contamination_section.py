"""What a report shows of `tokenloom contamination --json`."""

from __future__ import annotations

import json

import pytest
from report_pages import locked, made, words_of
from tests.run.small_runs import segment, source

from tokenloom.errors import InputError
from tokenloom_look.report.contamination_section import contamination_section

TARGET = locked([source("web", 10)], [segment(0, 8, [1])])
PASSAGE = {"source": "web", "document": 7, "of_item": "a <b>", "of_document": "A\n\x1b[31m<b>"}
FOUND = {
    "words": 13,
    "num_tokens": 1000,
    "benchmarks": [
        {
            "benchmark": "b/x.jsonl",
            "items": 30,
            "too_short": 1,
            "found": 22,
            "coverage": 0.5,
            "documents": 3,
            "first_step": 7,
        },
        {"benchmark": "new.jsonl", "items": 1, "too_short": 0, "found": 0, "coverage": 0.0, "documents": 0},
    ],
    "sources": [{"source": "web", "items": 22, "documents": 3}],
    "items": [
        {"benchmark": "b/x.jsonl", "record": number, "coverage": number / 22, "passages": [PASSAGE]}
        for number in range(1, 23)
    ],
}


def test_what_was_found_is_shown_side_by_side_as_text(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(FOUND))
    section = made(contamination_section, TARGET, contamination=str(path))
    words = words_of(section.html)
    assert "x.jsonl 30 1 22 50% 3 7 new.jsonl 1 0 0 0% 0 1,000 tokens, searched for n-grams of 13 words" in words
    assert "x.jsonl:22: 100% of it, in 1 documents where text x.jsonl:22 a <b> web:7 A \\x1b[31m<b>" in words
    assert words.endswith("2 more items are not shown.")
    assert "<b>" not in section.html
    assert section.findings == ["22 of 30 items of x.jsonl stand in the data."]


def test_there_is_a_section_only_of_a_file_of_the_command(tmp_path):
    assert made(contamination_section, TARGET) is None
    path = tmp_path / "found.json"
    for text in ("", "[]", '{"benchmarks": []}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"cannot read `.*found\.json`: "):
            made(contamination_section, TARGET, contamination=str(path))
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        made(contamination_section, TARGET, contamination=str(path))
