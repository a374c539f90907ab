"""Settings of jobs."""

from __future__ import annotations

import pytest

from tokenloom.corpus.settings import BadRecordBudget
from tokenloom.errors import ConfigError


def test_a_budget_reads_well():
    assert str(BadRecordBudget(most=3)) == "3"
    assert str(BadRecordBudget.parse("0.1%")) == "0.1 %"
    assert str(BadRecordBudget(most=5, most_share=0.5)) == "5 or 50 %"


@pytest.mark.parametrize(("text", "most", "share"), [("3", 3, 1.0), ("0.5%", None, 0.005), ("100%", None, 1.0)])
def test_budgets_are_counts_or_shares(text, most, share):
    assert BadRecordBudget.parse(text) == BadRecordBudget(most=most, most_share=share)


def test_what_is_no_budget_is_refused():
    for text in ("-1", "101%", "many", ""):
        with pytest.raises(
            ConfigError, match=r"expected a number of bad records such as 100, or a share such as 0\.1%"
        ):
            BadRecordBudget.parse(text)


def test_a_budget_is_exceeded_by_one_more_or_by_a_larger_share():
    budget = BadRecordBudget(most=5, most_share=0.5)
    assert not budget.is_exceeded(5)
    assert budget.is_exceeded(6)
    assert not budget.is_exceeded(5, 10)
    assert budget.is_exceeded(5, 9)
