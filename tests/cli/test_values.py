"""Values of options."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from tokenloom.cli.options import byte_count, option, shares, split_weights


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("500MB", 500_000_000), ("10GiB", 10 << 30), ("1.5 KB", 1500), ("2TB", 2 * 10**12)],
)
def test_byte_counts_have_units(text, expected):
    assert byte_count(text) == expected


@pytest.mark.parametrize(
    ("text", "weights", "by_name"),
    [
        ("98,1,1", "98,1,1", {"train": 0.98, "valid": 0.01, "test": 0.01}),
        ("3,1", "3,1", {"train": 0.75, "valid": 0.25}),
        ("1", "1", {"train": 1.0}),
        ("train=0.99,valid=0.01", "0.99,0.01,0.0", {"train": 0.99, "valid": 0.01}),
        ("test=0.25,train=0.75", "0.75,0.0,0.25", {"train": 0.75, "test": 0.25}),
    ],
)
def test_splits_have_one_grammar(text, weights, by_name):
    assert split_weights(text) == weights
    assert shares(text) == by_name


@pytest.mark.parametrize("parse", [split_weights, shares])
@pytest.mark.parametrize(
    "text", ["90,abc,5", "1,-1", "1,2,3,4", "0,0", "train=0.9,train=0.1", "train", "train=2", "=1", "train=0.5,98", ""]
)
def test_a_split_that_is_none_shows_both_forms(parse, text):
    with pytest.raises(ArgumentTypeError, match=r"; write weights such as 98,1,1, or shares such as train=0\.98"):
        option(parse)(text)


@pytest.mark.parametrize("text", ["train=0.9", "train=0.9,dev=0.1"])
def test_shares_of_a_run_are_of_train_valid_and_test(text):
    with pytest.raises(ArgumentTypeError, match="expected shares of train, valid and test that add up to 1, found"):
        option(split_weights)(text)
