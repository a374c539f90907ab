"""Real processes that compare what they have read."""

from __future__ import annotations

import pytest
from tests.loading.reading import dataset_of

from tokenloom.loading.digest import RangeDigest, digest_of_positions

LAST = "since the last check: expected digest"


@pytest.fixture
def dataset(tmp_path):
    return dataset_of(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_data_parallel_ranks_has_read_the_same(run, dataset, tmp_path, size):
    outcomes = run("read_and_check", folder=str(tmp_path), size=size, lying={}, resumed=size == 2)
    middle, end = outcomes.results[0]
    assert outcomes.results == [[middle, end]] * 4
    assert RangeDigest.parse(middle).digest == digest_of_positions(dataset, range(48))
    assert RangeDigest.parse(end).digest == digest_of_positions(dataset, range(96))
    assert RangeDigest.parse(end).start == 0


def told(outcomes):
    """Returns the message of the error that is the same on all ranks."""
    [(kind, message)] = set(outcomes.errors)
    assert kind == "DivergenceError"
    return message


@pytest.mark.parametrize(
    ("options", "ranks", "positions", "batch"),
    [
        ({"size": 4, "lying": {2: 26}}, "data-parallel rank 2: rank 2", "[24, 25, 26, 27]", 1),
        ({"size": 2, "lying": {1: 80}, "reread": "never"}, "data-parallel rank 0: rank 1", "[80, 81, 82, 83]", 4),
        ({"size": 2, "lying": {2: 4, 3: 4}}, "data-parallel rank 1: ranks 2-3", "[4, 5, 6, 7]", 0),
    ],
)
def test_ranks_that_lie_are_named(run, dataset, tmp_path, options, ranks, positions, batch):
    message = told(run("read_and_check", folder=str(tmp_path), **options))
    expected = f"{ranks} read tokens that differ from the data at positions {positions}, batch {batch} {LAST}"
    assert message.startswith(expected)


def test_ranks_without_a_loader_take_part(run, dataset, tmp_path):
    outcomes = run("read_and_check", folder=str(tmp_path), size=2, lying={}, readers=(0, 3))
    assert RangeDigest.parse(outcomes.results[1][1]).digest == digest_of_positions(dataset, range(96))


def test_a_rank_that_is_missing_is_named(run, dataset, tmp_path):
    message = told(run("read_and_check", folder=str(tmp_path), size=2, lying={}, readers=(0, 1)))
    assert message == "no loader for data-parallel rank 1 of 2"


def test_ranks_at_different_positions_are_told(run, dataset, tmp_path):
    message = told(run("read_and_check", folder=str(tmp_path), size=4, lying={}, late=1))
    assert message.startswith("ranks read different ranges since the last check: positions 0-48 of run ")
    assert " as 4 data-parallel ranks on ranks 0, 2-3, positions 0-32 of run " in message
