"""Differences of two readings, on batches of letters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom_check.fingerprints import Sample
from tokenloom_check.verify_resume import compare


def reading(text):
    """Parses batches of letters: words are batches, and `|` separates ranks."""
    return [[[Sample(letter, letter) for letter in rank] for rank in word.split("|")] for word in text.split()]


def counts(expected, found, *, after="", order="batch"):
    result = compare(reading(expected), reading(found), after=reading(after), order=order)
    return result.repeated, result.missing, result.unknown, result.reordered


@pytest.mark.parametrize(
    ("expected", "found", "result"),
    [
        ("ab cd ef", "ab cd ef", (0, 0, 0, 0)),
        ("ab cd ef", "ab dc ef", (0, 0, 0, 0)),
        ("ab cd ef", "ab ef", (0, 2, 0, 0)),
        ("ab cd ef", "ab ab cd ef", (2, 2, 0, 0)),  # the window ends after six samples
        ("ab cd ef", "ab cd cd", (2, 2, 0, 0)),
        ("ab cd ef", "ef cd ab", (0, 0, 0, 4)),
        ("ab cd ef", "ab xy ef", (0, 2, 2, 0)),
        ("ab cd ef", "", (0, 6, 0, 0)),
        ("aa aa", "aa aa", (0, 0, 0, 0)),
        ("aa ba", "aa aa", (1, 1, 0, 0)),
        ("a|b c|d", "b|a d|c", (0, 0, 0, 0)),
        ("a|b c|d e|f g|h", "a|b|c|d e|f|g|h", (0, 0, 0, 0)),
        ("ab cd ef", "abcd efgh", (0, 0, 2, 0)),
    ],
)
def test_differences_are_counted(expected, found, result):
    assert counts(expected, found) == result


def test_samples_after_the_window_are_ignored():
    assert counts("ab cd ef", "abcd efgh", after="gh") == (0, 0, 0, 0)
    assert counts("ab cd ef", "ab ef gh", after="gh") == (0, 2, 0, 0)


@pytest.mark.parametrize(
    ("order", "found", "moved"),
    [
        ("strict", "a|b c|d", 0),
        ("strict", "b|a c|d", 2),
        ("strict", "a|b|c|d", 0),
        ("batch", "b|a c|d", 0),
        ("batch", "c|b a|d", 2),
        ("any", "c|d a|b", 0),
    ],
)
def test_orders_that_can_be_required(order, found, moved):
    assert counts("a|b c|d", found, order=order) == (0, 0, 0, moved)


@pytest.mark.parametrize(
    ("found", "kind", "batch", "rank", "expected_batch", "letter"),
    [
        ("a|b c|d c|d", "repeated", 2, 0, 1, "c"),
        ("a|b e|f", "missing", 1, 0, 1, "c"),
        ("a|b c|d e|x", "missing", 2, 1, 2, "f"),
        ("a|b c|d e|f|x", "unknown", 2, 2, None, "x"),
        ("a|c b|d e|f", "reordered", 0, 1, 1, "c"),
    ],
)
def test_the_first_difference_is_located(found, kind, batch, rank, expected_batch, letter):
    first = compare(reading("a|b c|d e|f"), reading(found)).first
    place = (first.kind, first.batch, first.rank, first.expected_batch, first.sample)
    assert place == (kind, batch, rank, expected_batch, letter)
    assert first.fingerprint == letter


@given(
    st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(st.text("abcdefg", min_size=1, max_size=3), max_size=5),
)
def test_counts_match_multisets(expected, found):
    result = compare(reading(" ".join(expected)), reading(" ".join(found)))
    window = Counter("".join(expected))
    seen = Counter()
    for word in found:
        if seen.total() < window.total():
            seen += Counter(word)
    assert result.missing == (window - seen).total()
    assert result.repeated + result.unknown == (seen - window).total()
    assert result.any == bool(result.repeated or result.missing or result.unknown or result.reordered)
    assert result.num_samples == window.total()
