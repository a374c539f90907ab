"""Shares and durations in words."""

from __future__ import annotations

import pytest

from tokenloom.report.words import duration, share


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 0, "0%"), (0, 5, "0%"), (5, 5, "100%"), (1, 8, "12.5%"), (1, 10**9, "<0.1%"), (10**9 - 1, 10**9, ">99.9%")],
)
def test_shares_are_not_rounded_to_nothing_or_all(part, whole, words):
    assert share(part, whole) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0.0 s"), (59, "59 s"), (61, "1 min"), (5400, "1.5 h"), (3 * 86400, "3.0 days")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words
