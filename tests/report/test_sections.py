"""Sections are made one by one, and one that fails says so in its place."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder
from tokenloom.errors import DatasetFormatError
from tokenloom.inspect.target import TargetKind, open_target
from tokenloom.report.options import ReportOptions
from tokenloom.report.section import Section
from tokenloom.report.sections import SECTIONS, ListedSection, made, made_sections, sections_of


@pytest.fixture
def target(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=np.uint16) as builder:
        builder.add_document([5, 6, 7], [3])
        builder.finalize(f"{tmp_path}/corpus.idx")
    return open_target([f"{tmp_path}/corpus"])


def listed(make) -> ListedSection:
    return ListedSection(id="one", title="One", kinds={TargetKind.pair}, make=make)


def test_names_are_fit_for_addresses_and_unique():
    names = [each.id for each in SECTIONS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)


def test_a_target_has_the_sections_of_its_kind(target):
    assert [each.id for each in sections_of(target)] == [each.id for each in SECTIONS if TargetKind.pair in each.kinds]
    found = list(made_sections(target, ReportOptions()))
    assert [each.listed for each in found] == sections_of(target)
    assert [each.error for each in found] == [None] * len(found)
    assert all(each.section is None or each.section.id == each.listed.id for each in found)


def test_a_section_that_fails_says_so_in_its_place(target):
    def fail(*_: object) -> Section:
        raise DatasetFormatError("`<b>` is damaged", hint="verify it")

    found = made(listed(fail), target, ReportOptions())
    assert found.error == "`<b>` is damaged\nhint: verify it"
    assert found.section.html == (
        '<div class="error" role="note"><p><strong>This section could not be made. </strong>'
        "`&lt;b&gt;` is damaged</p><p>Hint: verify it</p></div>"
    )
    assert found.section.findings == ["One: this section could not be made: `<b>` is damaged"]


def test_what_nobody_has_thought_of_is_named_with_its_class(target):
    def fail(*_: object) -> Section:
        raise IndexError("out of range")

    assert made(listed(fail), target, ReportOptions()).error == "IndexError: out of range"


def test_there_may_be_nothing_to_say(target):
    found = made(listed(lambda *_: None), target, ReportOptions())
    assert (found.section, found.error) == (None, None)
