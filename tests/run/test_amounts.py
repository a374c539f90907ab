"""Counts, weights and shares as people write them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import count_of, share_of, weight_of


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (2**63 - 1, 2**63 - 1),
        ("900B", 900 * 10**9),
        ("1.5T", 15 * 10**11),
        ("3K", 3000),
        ("0.5M", 500_000),
        ("10_000_000", 10**7),
        (Decimal("1e9"), 10**9),
    ],
)
def test_counts(value, number):
    assert count_of(value, "`tokens`") == number


@pytest.mark.parametrize(
    "value", [0, 2**63, True, Decimal("1.5"), Decimal("nan"), "1.5", "-1B", "1.2345K", "900X", "1__0", None, "9999999T"]
)
def test_what_is_no_count(value):
    with pytest.raises(ConfigError, match=r"(?s)expected `tokens` to be a whole number.*B or G 10\^9"):
        count_of(value, "`tokens`")


@pytest.mark.parametrize("value", [0, 1, Decimal("0.1"), Decimal("1e-30"), Decimal("1e29"), 10**29])
def test_weights(value):
    assert weight_of(value, "`web`") == Fraction(value)


@pytest.mark.parametrize(
    "value",
    [
        *(-1, Decimal("nan"), Decimal("inf"), True, "1", Decimal("1e999999999"), Decimal("1e-31"), 10**30),
    ],
)
def test_what_is_no_weight(value):
    with pytest.raises(ConfigError, match="expected `web` to be a finite number from 0 on, found"):
        weight_of(value, "`web`")


@pytest.mark.parametrize(
    ("value", "share"),
    [("0.1%", Fraction(1, 1000)), ("50%", Fraction(1, 2)), ("2 %", Fraction(1, 50)), (Decimal("0.5"), Fraction(1, 2))],
)
def test_shares(value, share):
    assert share_of(value, "`holdout`") == share


@pytest.mark.parametrize(
    "value",
    [
        *("0%", "50.1%", "-1%", "1", "%", "nan%", 0, 5, True, Decimal("0.6"), Decimal("nan"), None),
    ],
)
def test_what_is_no_share(value):
    with pytest.raises(ConfigError, match="expected `holdout` to be more than 0% and at most 50%, found"):
        share_of(value, "`holdout`")


@given(st.one_of(st.text("0123456789_.KMBGT% e-"), st.decimals(), st.integers(), st.booleans(), st.none()))
def test_any_value_is_a_number_or_refused(value):
    for read in (count_of, weight_of, share_of):
        try:
            number = read(value, "`it`")
        except ConfigError:
            continue
        assert 0 <= number < 10**30
