"""Cost models, and lower bounds of plans."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import few_examples

from tokenloom import ConfigError, PolynomialCost
from tokenloom.packing.cost import least_slowest_cost
from tokenloom_check.packing import least_step_imbalance


def test_cost_counts_tokens_pairs_and_what_other_ranks_send():
    lengths = np.array([1, 10, 100])
    assert PolynomialCost().cost(lengths, 1).tolist() == [1.0, 100.0, 10000.0]
    model = PolynomialCost(linear=3.0, quadratic=0.5, communication=2.0)
    assert model.cost(lengths, 1).tolist() == [3.5, 80.0, 5300.0]
    assert model.cost(lengths, 4).tolist() == [(3.5 + 6) / 4, (80 + 60) / 4, (5300 + 600) / 4]


@pytest.mark.parametrize("name", ["linear", "quadratic", "communication"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_factors_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` of a cost: must be (0 or more|a finite number), got"):
        PolynomialCost(**{name: value})


def test_something_must_cost():
    with pytest.raises(ConfigError, match="both 0"):
        PolynomialCost(linear=0.0, quadratic=0.0, communication=1.0)


@few_examples
@given(
    lengths=st.lists(st.integers(1, 10), min_size=2, max_size=6),
    num_ranks=st.integers(1, 2),
    linear=st.sampled_from([0.0, 3.0]),
)
def test_no_plan_is_below_the_bounds(lengths, num_ranks, linear):
    lengths = np.array(sorted(lengths, reverse=True))
    costs = PolynomialCost(linear=linear).cost(lengths, 1)
    slowest, worst = [], []
    for num_steps in range(1, len(lengths) // num_ranks + 1):
        for pack_of in itertools.product(range(num_steps * num_ranks), repeat=len(lengths)):
            tokens = np.bincount(pack_of, weights=lengths, minlength=num_steps * num_ranks)
            if tokens.min() > 0 and tokens.max() <= 10:
                of_steps = np.bincount(pack_of, weights=costs, minlength=len(tokens)).reshape(num_steps, num_ranks)
                slowest.append(of_steps.max(axis=1).sum())
                worst.append((of_steps.max(axis=1) / of_steps.mean(axis=1)).max())
        if num_steps * num_ranks > 4:
            break
    if slowest:
        assert least_slowest_cost(lengths, costs, 10, num_ranks) <= min(slowest) * (1 + 1e-12)
        assert least_step_imbalance(lengths, costs, 10, num_ranks) <= min(worst) * (1 + 1e-12)
