"""Real processes that compare values."""

from __future__ import annotations


def test_equal_values_pass(run):
    assert run("agree_on", values=["blue"] * 4).results == [None] * 4


def test_ranks_without_a_value_are_not_compared(run):
    assert run("agree_on", values=["blue", None, "blue", None]).results == [None] * 4


def test_unequal_values_name_the_ranks_that_hold_them(run):
    outcomes = run("agree_on", values=["blue", "red", "blue", "blue"])
    expected = "ranks differ in the colour: 'blue' on ranks 0, 2-3, 'red' on rank 1"
    assert outcomes.errors == [("DivergenceError", expected)] * 4


def test_long_values_are_compared_as_a_whole(run):
    outcomes = run("agree_on", values=["a" * 20_000 + "b", "a" * 20_001], world_size=2)
    assert [kind for kind, _ in outcomes.errors] == ["DivergenceError"] * 2


def test_failing_to_compute_a_value_fails_all_ranks(run):
    outcomes = run("fail_to_agree")
    assert all("failed in comparing the colour: OSError: disk on fire" in message for _, message in outcomes.errors)
