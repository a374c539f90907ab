"""The number of samples that a build requests from each dataset."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import make_config

from tokenloom.blending.quota import blend_counts, normalize, quotas, sufficient_surplus, target_sizes, with_surplus
from tokenloom.errors import ConfigError

PREFIXES = ["a", "b", "c"]


def test_weights_become_shares_and_sizes():
    assert normalize([1, 2, 1]) == [0.25, 0.5, 0.25]
    assert target_sizes([0.25, 0.5, 0.25], 10) == [3, 5, 3]
    assert [with_surplus(target, 0.005) for target in target_sizes([0.25, 0.5, 0.25], 1000)] == [252, 503, 252]
    assert blend_counts([1, 2, 1], 0).tolist() == [0, 0, 0]
    assert blend_counts([1, 2, 1], 0).dtype == blend_counts([1, 2, 1], 8).dtype == np.int64
    assert blend_counts([1, 2, 1], 8).tolist() == [2, 4, 2]


@given(
    weights=st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=50),
    size=st.integers(1, 3000),
    surplus=st.sampled_from([0.0, 0.005, 1.5]),
)
def test_what_is_built_covers_what_is_meant(weights, size, surplus):
    shares = normalize(weights)
    targets = target_sizes(shares, size)
    assert size <= sum(targets) <= size + len(weights)
    assert all(with_surplus(target, surplus) >= target for target in targets)
    assert all(
        with_surplus(each, sufficient_surplus(each, more)) == more for each in targets for more in (each + 1, 9 * each)
    )
    assert blend_counts(shares, sum(targets)).sum() == sum(targets)


def kinds(sizes=(10, 10, 10), **settings):
    return [quota and (quota.kind, quota.num_samples) for quota in quotas(make_config(None, **settings), sizes)]


def test_every_case_of_the_table():
    one, three = ["a"], PREFIXES
    assert kinds((5, None, 0), blend=(one, None), split="1,1,1") == [
        ("single", (5,)),
        ("single", (None,)),
        ("single", (0,)),
    ]
    assert kinds(blend=(one, [2.0]), split="1")[0] == ("weighted", (11,))
    assert kinds(blend=(three, [2.0, 1.0, 1.0]), split="1,1,0") == [("weighted", (6, 4, 4))] * 2 + [None]
    assert kinds(blend=(three, None), split="1")[0] == ("proportional", (None, None, None))
    assert kinds(blend_per_split=[(one, [2.0]), None, (three, None)]) == [
        ("single", (10,)),
        None,
        ("proportional", (None, None, None)),
    ]
    lists = kinds(blend_per_split=[(three, None)] * 3, multiple_validation_sets=True)
    assert lists[1] == ("list", (10, 10, 10))
    assert lists[0][0] == lists[2][0] == "proportional"
    several = {"blend_per_split": [(three, None)] * 3, "multiple_validation_sets": True, "full_validation": True}
    full = kinds((10, None, 10), **several)
    assert full[1] == ("list", (None, None, None))
    assert kinds() == [("single", (10,))] * 3  # mock data


@pytest.mark.parametrize("weights", [[1e-320, 1e5, 1.0], [1e308, 1e308, 1e308]])
def test_weights_that_vanish_are_refused(weights):
    with pytest.raises(ConfigError, match=r"^weight .* of `a` \(train\): too small compared with the sum, ") as caught:
        quotas(make_config(None, blend=(PREFIXES, weights), split="1"), [10, None, None])
    assert caught.value.hint == "remove the dataset, or use weights of similar magnitude"


def test_negative_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"^the size for valid: must be 0 or more, got -1$"):
        quotas(make_config("a"), [1, -1, 1])
