"""Split strings and the documents of each split."""

from __future__ import annotations

import pickle
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.datasets.splits import Split, parse_and_normalize_split, split_indices, split_matrix


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("99,1,0", [0.99, 0.01, 0.0]),
        ("1", [1.0, 0.0, 0.0]),
        ("0,0,5", [0.0, 0.0, 1.0]),
        ("3/1", [0.75, 0.25, 0.0]),
        (".5,.5", [0.5, 0.5, 0.0]),
    ],
)
def test_every_run_of_digits_and_dots_is_a_weight(text, shares):
    assert parse_and_normalize_split(text) == shares


def test_a_split_of_weight_0_has_no_interval():
    assert split_matrix([0.99, 0.01, 0.0]) == [(0, 0.99), (0.99, 1.0), None]
    assert split_matrix([0.0, 0.0, 1.0]) == [None, None, (0.0, 1.0)]


def test_bounds_are_rounded_to_the_nearest_element_and_halves_to_even():
    assert split_indices((0, 0.99), 3).tolist() == [0, 1, 2]
    assert split_indices((0.99, 1.0), 3).tolist() == []  # 1 % of three documents
    assert split_indices((0, 0.5), 5).tolist() == [0, 1]
    assert split_indices((0, 0.5), 7).tolist() == [0, 1, 2, 3]
    assert split_indices((0.25, 0.5), 0).tolist() == []


def test_indices_are_wide_only_where_they_must_be():
    assert split_indices((0, 0.5), 100).dtype == np.int32
    assert split_indices((1.0, 1.0), 2**31).dtype == np.int64


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3).filter(any), st.integers(0, 5000))
def test_every_element_is_in_exactly_one_split(weights, num_elements):
    matrix = split_matrix(parse_and_normalize_split(",".join(map(str, weights))))
    assert len(matrix) == len(Split)
    parts = [split_indices(bounds, num_elements) for bounds in matrix if bounds is not None]
    assert np.concatenate(parts).tolist() == list(range(num_elements))


def test_a_split_equals_the_one_of_its_name_in_another_package():
    other = Enum("Split", {"train": 0, "valid": 1, "test": 2})
    for mine, theirs in zip(Split, other, strict=True):
        assert mine == theirs
        assert theirs == mine
        assert hash(mine) == hash(theirs)
        assert {mine: 1}[theirs] == {theirs: 1}[mine] == 1
        assert not mine != theirs  # noqa: SIM202 - the other operator
    assert Split.train != other.valid
    assert other.valid != Split.train
    assert Split.train not in (0, "train", None, Enum("Part", {"train": 0}).train)
    assert pickle.loads(pickle.dumps(Split.valid)) is Split.valid
    assert list(Split) == [Split(0), Split["valid"], Split.test]
