"""The sentences of each sample of masked datasets."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import sentences as reference

from tokenloom import ConfigError, build_blocks_mapping, build_mapping
from tokenloom.order.sentences import mapping_dtype, sentence_mismatch

SETTINGS = {"max_sequence_length": 10, "short_sequence_probability": 0.0, "seed": 1, "min_sentences": 1}


def rows_of(boundaries, lengths, **changes):
    """Returns the rows of a mapping in text order."""
    rows = build_mapping(np.array(boundaries), np.array(lengths, dtype=np.int32), **(SETTINGS | changes))
    return sorted(rows.tolist())


@pytest.mark.parametrize(
    ("boundaries", "lengths", "changes", "rows"),
    [
        ([0, 6], [5] * 6, {}, [[0, 2, 10], [2, 4, 10], [4, 6, 10]]),  # a sample ends once it holds the target
        ([0, 5], [5] * 5, {}, [[0, 2, 10], [2, 5, 10]]),  # a single last sentence joins the sample before it
        ([0, 2, 3], [1, 1, 3], {}, [[0, 2, 10], [2, 3, 10]]),  # a document that ends early is a sample
        ([0, 6], [20, 1, 20, 1, 1, 1], {"min_sentences": 2}, [[0, 2, 10], [2, 4, 10], [4, 6, 10]]),
        ([0, 1, 3], [5, 5, 5], {"min_sentences": 2}, [[1, 3, 10]]),
        ([0, 2, 4, 5], [512, 1, 513, 1, 600], {}, [[0, 2, 10], [4, 5, 10]]),  # too long, unless it is alone
        ([0, 0, 2, 2], [1, 1], {}, [[0, 2, 10]]),
        ([0], [], {}, []),
    ],
)
def test_samples_by_hand(boundaries, lengths, changes, rows):
    assert rows_of(boundaries, lengths, **changes) == rows


def test_epochs_repeat_until_there_are_enough_and_are_complete():
    assert len(rows_of([0, 1, 2], [3, 3], num_epochs=5)) == 10
    assert len(rows_of([0, 1, 2], [3, 3], num_epochs=5, max_num_samples=3)) == 4
    assert rows_of([0, 1, 2], [3, 3], num_epochs=5, max_num_samples=0) == []


def test_documents_that_give_nothing_are_walked_once_only():
    # A loop over the epochs would take years.
    assert rows_of([0, 1], [3], num_epochs=2**62, max_num_samples=2**62, min_sentences=2) == []


def test_blocks_leave_room_for_the_title():
    rows = build_blocks_mapping(
        np.array([0, 4, 8]),
        np.full(8, 5, dtype=np.int32),
        np.array([0, 5], dtype=np.int32),
        max_sequence_length=10,
        seed=1,
        use_one_sentence_blocks=True,
    )
    assert sorted(rows.tolist()) == [[0, 2, 0, 0], [2, 4, 0, 1], [4, 5, 1, 2], [5, 6, 1, 3], [6, 7, 1, 4], [7, 8, 1, 5]]


def test_wide_rows_hold_the_same(monkeypatch):
    corpus, titles = (np.array([0, 30, 60]), np.full(60, 4, dtype=np.int32)), np.zeros(2, dtype=np.int32)

    def both():
        return build_mapping(*corpus, **SETTINGS), build_blocks_mapping(*corpus, titles, max_sequence_length=8, seed=1)

    narrow = both()
    with monkeypatch.context() as patched:
        patched.setattr("tokenloom.order.sentences._UINT32_MAX", 59)
        wide = both()
    assert [rows.dtype for rows in (*narrow, *wide)] == [np.uint32, np.uint32, np.uint64, np.uint64]
    assert [rows.tolist() for rows in narrow] == [rows.tolist() for rows in wide]
    assert [mapping_dtype(count) for count in (2**32 - 1, 2**32)] == [np.uint32, np.uint64]


lengths_of_sentences = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([0, 512, 513])), max_size=25)


@st.composite
def corpora(draw):
    """Draws document boundaries and sentence lengths."""
    lengths = draw(lengths_of_sentences)
    inner = draw(st.lists(st.integers(0, len(lengths)), max_size=8))
    return np.array([0, *sorted(inner), len(lengths)]), np.array(lengths, dtype=np.int32)


counts = {
    "num_epochs": st.integers(1, 4),
    "max_num_samples": st.sampled_from([0, 1, 5, 1000]),
    "max_sequence_length": st.integers(2, 60),
    "seed": st.integers(0, 2**32 - 1),
}


sentences = {"short_sequence_probability": st.sampled_from([0.0, 0.1, 0.3, 1.0]), "min_sentences": st.integers(1, 3)}


@given(corpora(), st.fixed_dictionaries(counts | sentences))
def test_a_mapping_is_what_its_twin_builds(corpus, settings):
    rows = build_mapping(*corpus, **settings)
    assert rows.tolist() == [list(row) for row in reference.build_mapping(*map(np.ndarray.tolist, corpus), **settings)]
    assert sentence_mismatch(rows, corpus[0], max_sequence_length=settings["max_sequence_length"]) is None


@given(corpora(), st.fixed_dictionaries({**counts, "use_one_sentence_blocks": st.booleans()}), st.data())
def test_a_mapping_of_blocks_is_what_its_twin_builds(corpus, settings, data):
    size = len(corpus[0]) - 1
    titles = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.int32)
    rows = build_blocks_mapping(*corpus, titles, **settings)
    arguments = [array.tolist() for array in (*corpus, titles)]
    assert rows.tolist() == [list(row) for row in reference.build_blocks_mapping(*arguments, **settings)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_sequence_length": 0}, "max_sequence_length"),
        ({"max_sequence_length": 1, "short_sequence_probability": 0.1}, "max_sequence_length"),
        ({"short_sequence_probability": 1.5}, r"`short_sequence_probability` must be in \[0, 1\], got 1.5"),
        ({"seed": -1}, "a seed"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        rows_of([0, 1], [3], **changes)
    with pytest.raises(IndexError, match="document 0 owns sentences"):
        rows_of([0, 5], [3])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 3, 10], r"sample 0 has sentences \[0, 3\), which are not in one document"),
        ([1, 1, 10], r"sentences \[1, 1\)"),
        ([4, 5, 10], r"sentences \[4, 5\)"),
        ([0, 2, 11], r"a target of 11 tokens, which must be in \[1, 10\]"),
        ([0, 2, 0], "a target of 0 tokens"),
    ],
)
def test_rows_of_other_data_are_found_out(row, message):
    misfit = sentence_mismatch(np.array([row], dtype=np.uint32), np.array([0, 2, 4]), max_sequence_length=10)
    assert misfit is not None
    assert re.search(message, misfit)
