"""Samples and documents that are shown, and how much of them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.report.pages import words_of

from tokenloom.errors import ConfigError
from tokenloom.inspect.shown_html import shown_html
from tokenloom.inspect.target import SampleSettings, open_target
from tokenloom.report.options import ReportOptions
from tokenloom.report.samples_section import beginning, samples_section, shown_documents_section

EOD = 256
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e\x00"


def target_of(*prefixes: str, length: int = 8):
    return open_target(list(prefixes), tokenizer="byte", settings=SampleSettings(sequence_length=length))


def ids_of(text: str) -> list[int]:
    return [*text.encode(), EOD]


def test_the_first_sample_is_shown_and_drawn_ones(write_pair):
    target = target_of(write_pair([ids_of("some words")] * 40))
    found = samples_section(target, ReportOptions(num_samples_shown=3))
    words = words_of(found.html)
    assert words.count("Position ") == 3
    assert "Position 0" in words
    assert "samples of 8 tokens, shuffled with the seed 1234" in words
    assert words == words_of(samples_section(target, ReportOptions(num_samples_shown=3)).html)


def test_data_too_few_for_a_sample_have_none_and_blends_too(write_pair):
    one, two = write_pair([[1, 2]], "one"), write_pair([[5] * 100], "two")
    assert samples_section(target_of(one), ReportOptions()) is None
    assert samples_section(target_of(one, two), ReportOptions()) is None
    assert samples_section(target_of(two), ReportOptions(num_samples_shown=0)) is None
    assert shown_documents_section(target_of(two), ReportOptions(num_samples_shown=0)) is None
    assert shown_documents_section(target_of(write_pair([], "none")), ReportOptions()) is None


def test_the_odd_documents_are_shown(write_pair):
    texts = ["first", *["middle"] * 30, "the longest of all", "", "s"]
    found = shown_documents_section(target_of(write_pair([ids_of(text) for text in texts])), ReportOptions())
    words = words_of(found.html)
    for heading, text in (("The first", "first"), ("The longest", "the longest of all"), ("The shortest", "")):
        assert heading in words
        assert text in words
    assert words.count("Drawn") >= 3


def test_documents_of_a_blend_are_those_of_its_sources(write_pair):
    one, two = write_pair([ids_of("one")] * 9, "one"), write_pair([ids_of("two!")] * 9, "two")
    words = words_of(shown_documents_section(target_of(one, two), ReportOptions(num_samples_shown=9)).html)
    assert f"document 0 of {one}" in words
    assert f"document 0 of {two}" in words  # the longest


def test_of_long_documents_and_samples_the_beginning_is_shown(write_pair):
    target = target_of(write_pair([ids_of("x" * 5000)]), length=4000)
    assert "4,701 more tokens are not shown." in shown_documents_section(target, ReportOptions()).html
    assert "3,401 more tokens are not shown." in samples_section(target, ReportOptions()).html
    assert len(samples_section(target, ReportOptions()).html) < 5000


def test_a_beginning_is_what_the_whole_begins_with(write_pair):
    target = target_of(write_pair([ids_of("ab"), ids_of("cdef"), ids_of("gh")] * 4), length=16)
    whole = target.sample(0)
    for count in range(len(whole) + 1):
        part = beginning(whole, count)
        assert len(part) == count
        assert sum(span.stop - span.start for span in part.spans) == count
        assert shown_html(part, tokens=False)
    assert beginning(whole, 99) is whole
    with pytest.raises(ConfigError, match="from 0 on"):
        beginning(whole, -1)


def test_texts_of_strangers_are_texts(write_pair):
    target = target_of(write_pair([ids_of(HOSTILE * 3)]))
    for section in (samples_section(target, ReportOptions()), shown_documents_section(target, ReportOptions())):
        assert "<img" not in section.html
        assert not {"\x1b", "\u202e", "\x00"} & set(section.html)


def test_documents_that_are_shown_follow_from_the_seed(write_pair):
    target = target_of(write_pair([ids_of(f"text {number}") for number in range(100)]))
    one, again, other = (
        shown_documents_section(target, ReportOptions(seed=seed)).html for seed in np.array([1, 1, 2]).tolist()
    )
    assert one == again
    assert one != other
