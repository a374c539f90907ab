"""How well orders are shuffled: what is measured, and what uniform permutations give."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom_check import shuffle_quality


def in_blocks(rng, num_items: int, block: int, *, blocks_too: bool) -> np.ndarray:
    blocks = np.arange(num_items).reshape(-1, block)
    for row in blocks:
        rng.shuffle(row)
    return (rng.permutation(blocks) if blocks_too else blocks).ravel()


def test_the_numbers_of_a_small_order():
    found = shuffle_quality([0, 1, 5, 4, 2, 3])
    assert found.num_neighbours == 5
    assert found.adjacent == pytest.approx(3 / 5)
    assert found.distance.value == pytest.approx((1 + 4 + 1 + 2 + 1) / 5 / 6)
    assert found.rank_correlation.value == pytest.approx(1 - 6 * (0 + 0 + 9 + 1 + 4 + 4) / (6 * 35))
    assert found.median_distance == 1


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 5], [0, 1, 2, 10, 11, 12], [0, 1, 8, 9, 20, 21]])
def test_expectations_match_all_permutations(positions: list[int]):
    found = [shuffle_quality(each, positions=positions) for each in permutations(range(6))]
    for name in ("distance", "rank_correlation"):
        measures = [getattr(each, name) for each in found]
        values = np.array([measure.value for measure in measures])
        assert values.mean() == pytest.approx(measures[0].expected)
        assert values.std() == pytest.approx(measures[0].deviation)


@given(st.integers(0, 2**32 - 1), st.integers(60, 3000))
def test_permutations_are_as_good_as_uniform(seed: int, num_items: int):
    found = shuffle_quality(np.random.default_rng(seed).permutation(num_items))
    assert abs(found.distance.z_score) < 6
    assert abs(found.rank_correlation.z_score) < 6


def test_block_sizes_are_detected(rng):
    found = shuffle_quality(in_blocks(rng, 2**17, 1024, blocks_too=True))
    assert found.verdict == "shuffled within blocks of about 1,000"
    assert found.scale in (512, 1024)
    found = shuffle_quality(in_blocks(rng, 2**17, 1024, blocks_too=False))
    assert found.verdict == "shuffled within blocks of about 1,000, in the order of the data"


def test_invalid_orders_are_errors():
    with pytest.raises(ConfigError, match=r"item 2 out of range: there are 2 items"):
        shuffle_quality([0, 2], num_items=2)
