"""What all packing schedulers refuse, and that they travel."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.packing.plans import SETTINGS, check, make

from tokenloom import (
    ConfigError,
    scheduler_map,
)


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "expected at least one sub-sample in the global batch, found none"),
        ([3, 0, 2], "sub-sample 1 has 0 tokens, expected at least 1"),
        ([3, -5, 2], "sub-sample 1 has -5 tokens, expected at least 1"),
        ([3, 4, 2**63 - 1, 2**63 - 1], f"sub-sample 2 has {2**63 - 1} tokens, but "),
        (np.array([2**64 - 1], dtype=np.uint64), f"sub-sample 0 has {2**64 - 1} tokens, but "),
        ([1.0, 2.0], r"expected the lengths of sub-samples as integers in one dimension, found float64\(2,\)"),
        ([[1, 2]], r"integers in one dimension, found int64\(1, 2\)"),
    ],
)
def test_lengths_that_are_none_are_named(name, lengths, message):
    with pytest.raises(ConfigError, match=message):
        make(name, 8, 1, 2).plan(lengths)


@pytest.mark.parametrize("name", sorted(scheduler_map))
def test_numbers_near_the_end_of_int64(name):
    capacity = 2**58
    plan = make(name, capacity, 1, 4).plan([capacity, capacity, capacity - 1, capacity // 2, 1, 1, 1])
    check(plan, [capacity, capacity, capacity - 1, capacity // 2, 1, 1, 1], (capacity, 1, 4, None))
    with pytest.raises(ConfigError, match=r"8 ranks of \d+ tokens exceed 2\*\*61 tokens"):
        make(name, 2**59, 1, 8)
    with pytest.raises(ConfigError, match=r"9 sub-samples have more than 2\*\*61 tokens"):
        make(name, capacity, 1, 4).plan([capacity] * 9)


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize(("place", "value"), [(0, 0), (1, -1), (2, 2.5), (3, "8")])
def test_settings_must_be_positive_integers(name, place, value):
    settings = [8, 1, 2, 1]
    settings[place] = value
    with pytest.raises(ConfigError, match=SETTINGS[place]):
        make(name, *settings)


def test_schedulers_travel_between_processes():
    for name in scheduler_map:
        scheduler = pickle.loads(pickle.dumps(make(name, 8, 1, 2)))
        assert scheduler.plan([8, 3, 3, 2, 5, 5]) == make(name, 8, 1, 2).plan([8, 3, 3, 2, 5, 5])
