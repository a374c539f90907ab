"""Real processes that compare values, and how ranks are named."""

from __future__ import annotations

import pytest

from tokenloom.distributed.ranks import name_ranks


def test_equal_values_pass(run):
    assert run("agree_on", values=["blue"] * 4).results == [None] * 4


def test_ranks_without_a_value_are_not_compared(run):
    assert run("agree_on", values=["blue", None, "blue", None]).results == [None] * 4


def test_unequal_values_name_the_ranks_that_hold_them(run):
    outcomes = run("agree_on", values=["blue", "red", "blue", "blue"])
    expected = "ranks differ in the colour: 'blue' on ranks 0, 2-3, 'red' on rank 1"
    assert outcomes.errors == [("DivergenceError", expected)] * 4


def test_long_values_are_compared_as_a_whole(run):
    outcomes = run("agree_on", values=["a" * 20_000 + "b", "a" * 20_001, None, None])
    assert [kind for kind, _ in outcomes.errors] == ["DivergenceError"] * 4


def test_failing_to_compute_a_value_fails_all_ranks(run):
    outcomes = run("fail_to_agree")
    assert all("failed in comparing the colour: OSError: disk on fire" in message for _, message in outcomes.errors)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 2, 3, 4, 9], "ranks 0, 2-4, 9"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, …"),
    ],
)
def test_ranks_are_named_shortly(ranks, text):
    assert name_ranks(ranks) == text
