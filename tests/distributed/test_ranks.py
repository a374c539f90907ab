"""Ranks: which this is, and how they are named."""

from __future__ import annotations

import pytest

from tokenloom.distributed.ranks import name_ranks


def test_ranks_are_values(run):
    assert run("ranks", world_size=2).results == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([0, 2, 3, 4, 9], "ranks 0, 2-4, 9"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, …"),
    ],
)
def test_ranks_are_named_shortly(ranks, text):
    assert name_ranks(ranks) == text
