"""Cost models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokenloom import ConfigError, PolynomialCost


def test_cost_counts_tokens_pairs_and_what_other_ranks_send():
    lengths = np.array([1, 10, 100])
    assert PolynomialCost().cost(lengths, 1).tolist() == [1.0, 100.0, 10000.0]
    model = PolynomialCost(linear=3.0, quadratic=0.5, communication=2.0)
    assert model.cost(lengths, 1).tolist() == [3.5, 80.0, 5300.0]
    assert model.cost(lengths, 4).tolist() == [(3.5 + 6) / 4, (80 + 60) / 4, (5300 + 600) / 4]


def test_timings_of_two_lengths_give_the_factors():
    model = PolynomialCost.from_timings((1000, 0.003), (4000, 0.024))
    assert model.linear == pytest.approx(2e-6)
    assert model.quadratic == pytest.approx(1e-9)
    assert model.cost(np.array([1000, 4000]), 1).tolist() == pytest.approx([0.003, 0.024])


@pytest.mark.parametrize(
    ("timings", "message"),
    [
        (((1000, 0.003), (4000, 0.006)), "do not fit a time that is linear and quadratic in tokens"),
        (((1000, 0.001), (2000, 0.005)), "do not fit a time"),
        (((1000, 0.001), (1000, 0.001)), "a short and a longer sub-sample, found 1000 and 1000 tokens"),
        (((0, 0.001), (1000, 0.001)), "found 0 and 1000 tokens"),
        (((1000, math.nan), (2000, 0.005)), "do not fit a time"),
    ],
)
def test_timings_without_explanation_are_refused(timings, message):
    with pytest.raises(ConfigError, match=message):
        PolynomialCost.from_timings(*timings)


@pytest.mark.parametrize("name", ["linear", "quadratic", "communication"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_factors_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` of a cost must be finite and not negative"):
        PolynomialCost(**{name: value})


def test_something_must_cost():
    with pytest.raises(ConfigError, match="both 0, so nothing costs anything"):
        PolynomialCost(linear=0.0, quadratic=0.0, communication=1.0)
