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


@pytest.mark.parametrize("name", ["linear", "quadratic", "communication"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_factors_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` of a cost must be finite and not negative"):
        PolynomialCost(**{name: value})


def test_something_must_cost():
    with pytest.raises(ConfigError, match="both 0, so nothing costs anything"):
        PolynomialCost(linear=0.0, quadratic=0.0, communication=1.0)
