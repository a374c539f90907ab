"""Validation and pickling of all packing schedulers."""

from __future__ import annotations

import pickle

import pytest
from tests.packing.plans import SETTINGS, check, make

from tokenloom import ConfigError, scheduler_map


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "the global batch has no sub-samples"),
        ([3, 0, 2], "sub-sample 1 has 0 tokens"),
        ([3, -5, 2], "sub-sample 1 has -5 tokens"),
        ([3, 4, 2**63 - 1, 2**63 - 1], f"sub-sample 2 has {2**63 - 1} tokens; a pack has at most"),
        ([1.0, 2.0], r"lengths of sub-samples must be a vector of integers, got float64\(2,\)"),
        ([[1, 2]], r"a vector of integers, got int64\(1, 2\)"),
    ],
)
def test_invalid_lengths_are_refused(name, lengths, message):
    with pytest.raises(ConfigError, match=message):
        make(name, 8, 1, 2).plan(lengths)


@pytest.mark.parametrize("name", sorted(scheduler_map))
def test_packs_may_have_up_to_2_31_tokens(name):
    capacity = 2**31 - 1
    lengths = [capacity, capacity, capacity - 1, capacity // 2, 1, 1, 1]
    check(make(name, capacity, 1, 4).plan(lengths), lengths, (capacity, 1, 4, None))
    with pytest.raises(ConfigError, match=r"`max_seqlen_per_dp_cp_rank`: must be in \[1, 2\*\*31\), got 2147483648"):
        make(name, 2**31, 1, 8)


@pytest.mark.parametrize("name", sorted(scheduler_map))
@pytest.mark.parametrize(("place", "value"), [(0, 0), (1, -1), (2, 2.5), (3, "8")])
def test_settings_must_be_positive_integers(name, place, value):
    settings = [8, 1, 2, 1]
    settings[place] = value
    with pytest.raises(ConfigError, match=SETTINGS[place]):
        make(name, *settings)


def test_schedulers_can_be_pickled():
    for name in scheduler_map:
        scheduler = pickle.loads(pickle.dumps(make(name, 8, 1, 2)))
        assert scheduler.plan([8, 3, 3, 2, 5, 5]) == make(name, 8, 1, 2).plan([8, 3, 3, 2, 5, 5])
