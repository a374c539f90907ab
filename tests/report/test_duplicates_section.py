"""Near duplicates as a section of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.inspect.duplicates import DUPLICATES
from tests.report.pages import locked, made, words_of
from tests.run.small_runs import segment, source

from tokenloom.errors import InputError
from tokenloom.report.duplicates_section import duplicates_section
from tokenloom.report.options import ReportOptions
from tokenloom.retro.pair_duplicates import DuplicateDocuments, NearDuplicates

TARGET = locked([source("web", 9)], [segment(0, 6, [1])])


def section_of(folder: Path, found: NearDuplicates):
    (folder / "found.json").write_bytes(found.to_json())
    return made(duplicates_section, TARGET, near_duplicates=str(folder / "found.json"))


def test_both_texts_and_places_are_shown(tmp_path: Path):
    documents = (DuplicateDocuments(first=1, second=2, num_pairs=4, first_share=0.5, second_share=1.0, similarity=1.0),)
    section = section_of(tmp_path, replace(DUPLICATES, documents=documents))
    words = words_of(section.html)
    assert "<b>" not in section.html
    for text in ("web, document 3 (a.jsonl:4), tokens [0, 64)", "books, document 1,234", "50%", "100%", "exact"):
        assert text in words
    assert "\x1b" not in section.html
    assert "\\x1b" in section.html
    assert section.findings == [
        "1 of 10 chunks of `books` are also in `web`: 2 pairs of chunks with a similarity of 0.9 or more, in 1 pair of "
        "documents."
    ]
    [chart] = section.charts
    assert sum(chart.series[0].values) == 1


def test_without_pairs_there_is_nothing_to_find(tmp_path: Path):
    section = section_of(tmp_path, replace(DUPLICATES, chunks=(), num_pairs=0, num_found=0, num_document_pairs=0))
    assert (list(section.charts), list(section.findings)) == ([], [])


def test_of_many_pairs_some_are_shown(tmp_path: Path):
    many = replace(DUPLICATES, chunks=DUPLICATES.chunks * 60, num_pairs=70)
    assert "And 20 more pairs." in words_of(section_of(tmp_path, many).html)


def test_without_a_file_there_is_no_section():
    assert duplicates_section(TARGET, ReportOptions()) is None


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "found.json").write_text("{}")
    with pytest.raises(InputError, match="holds no near duplicates"):
        made(duplicates_section, TARGET, near_duplicates=str(tmp_path / "found.json"))
