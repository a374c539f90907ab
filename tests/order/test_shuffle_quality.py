"""How well orders are shuffled: what is measured, and what uniform permutations give."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.order.block_shuffle import BlockShuffle, build_block_document_index
from tokenloom.order.epochs import EpochPlan
from tokenloom.order.shuffle_quality import shuffle_quality


def in_blocks(rng, num_items: int, block: int, *, blocks_too: bool) -> np.ndarray:
    blocks = np.arange(num_items).reshape(-1, block)
    for row in blocks:
        rng.shuffle(row)
    return (rng.permutation(blocks) if blocks_too else blocks).ravel()


def test_the_numbers_of_a_small_order():
    found = shuffle_quality([0, 1, 5, 4, 2, 3])
    assert found.num_neighbours == 5
    assert found.adjacent.value == pytest.approx(3 / 5)
    assert found.distance.value == pytest.approx((1 + 4 + 1 + 2 + 1) / 5 / 6)
    assert found.rank_correlation.value == pytest.approx(1 - 6 * (0 + 0 + 9 + 1 + 4 + 4) / (6 * 35))
    assert found.median_distance == 1


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 5], [0, 1, 2, 10, 11, 12], [0, 1, 8, 9, 20, 21]])
def test_expectations_are_those_of_all_permutations(positions: list[int]):
    found = [shuffle_quality(each, positions=positions) for each in permutations(range(6))]
    for name in ("adjacent", "distance", "rank_correlation"):
        measures = [getattr(each, name) for each in found]
        values = np.array([measure.value for measure in measures])
        assert values.mean() == pytest.approx(measures[0].expected)
        assert values.std() == pytest.approx(measures[0].deviation)


def test_some_of_the_items_have_the_same_expectations():
    found = [shuffle_quality(each, num_items=7) for each in permutations(range(7), 4)]
    for name in ("adjacent", "distance"):
        values = np.array([getattr(each, name).value for each in found])
        assert values.mean() == pytest.approx(getattr(found[0], name).expected)
        assert values.std() == pytest.approx(getattr(found[0], name).deviation)


@given(st.integers(0, 2**32 - 1), st.integers(60, 3000))
def test_permutations_are_as_good_as_uniform(seed: int, num_items: int):
    found = shuffle_quality(np.random.default_rng(seed).permutation(num_items))
    assert abs(found.distance.z_score) < 6
    assert abs(found.rank_correlation.z_score) < 6


def test_permutations_are_rarely_taken_for_another_order():
    rng = np.random.default_rng(7)
    taken = sum(not shuffle_quality(rng.permutation(200)).is_uniform for _ in range(2000))
    assert taken <= 6


@given(st.integers(60, 3000))
def test_what_is_not_shuffled(num_items: int):
    assert shuffle_quality(np.arange(num_items)).verdict == "not shuffled"
    assert shuffle_quality(np.arange(num_items)[::-1]).verdict == "not shuffled, but backwards"


def test_too_few_say_nothing():
    assert shuffle_quality(np.arange(20)).verdict == "too few to tell"
    assert shuffle_quality([]).verdict == "too few to tell"
    assert shuffle_quality([0]).distance.z_score == 0


def test_blocks_are_told_by_their_size(rng):
    found = shuffle_quality(in_blocks(rng, 2**17, 1024, blocks_too=True))
    assert found.verdict == "shuffled within blocks of about 1,000"
    assert found.scale in (512, 1024)
    found = shuffle_quality(in_blocks(rng, 2**17, 1024, blocks_too=False))
    assert found.verdict == "shuffled within blocks of about 1,000, which follow each other as in the data"


def test_blocks_that_stay_in_order_inside(rng):
    order = rng.permutation(2**8)
    found = shuffle_quality((order[:, None] * 64 + np.arange(64)).ravel())
    # Blocks that follow each other as in the data are one stretch.
    num_breaks = np.count_nonzero(np.diff(order) != 1)
    assert found.adjacent.value == pytest.approx(1 - num_breaks / (2**14 - 1))
    size = (2**14 - 1) / num_breaks
    assert found.verdict in {
        f"stretches of about {each} as in the data" for each in (math.floor(size), math.ceil(size))
    }


def test_some_neighbours_that_stay_together_are_seen():
    rng = np.random.default_rng(3)
    items = rng.permutation(50_000).reshape(-1, 50)
    items[:, 1] = np.minimum(items[:, 0] + 3, 49_999)
    found = shuffle_quality(items.ravel())
    assert found.scale == 4
    assert found.verdict == "2.0% of neighbours lie within 4 in the data, instead of 0.016%"


def test_a_lean_on_the_order_of_the_data_is_seen():
    rng = np.random.default_rng(4)
    items = np.argsort(np.arange(4000) + rng.normal(0, 4000, 4000))
    assert shuffle_quality(items).verdict.startswith("leans on the order of the data: rank correlation 0.2")


def test_strides_are_farther_than_by_chance():
    items = (
        np.arange(4000)
        .reshape(2, -1)
        .T.ravel()[np.random.default_rng(1).permutation(2000).repeat(2) * 2 + [0, 1] * 2000]
    )
    assert shuffle_quality(items).verdict == "neighbours are farther than by chance"


def test_stretches_are_enough():
    rng = np.random.default_rng(5)
    order = in_blocks(rng, 2**20, 1024, blocks_too=True)
    positions = (rng.choice(2**20 // 64, 64, replace=False)[:, None] * 64 + np.arange(64)).ravel()
    positions.sort()
    found = shuffle_quality(order[positions], num_items=2**20, positions=positions)
    assert "shuffled within blocks of about" in found.verdict
    uniform = rng.permutation(2**20)[positions]
    assert shuffle_quality(uniform, num_items=2**20, positions=positions).verdict == "as good as uniform"


@pytest.mark.parametrize("window", [1, 8, 64])
def test_the_shuffle_by_blocks_of_storage_is_what_it_says(window: int):
    numbers = np.repeat(np.arange(512), 256)
    plan = EpochPlan(
        num_epochs=1,
        num_samples=512 * 256,
        tokens_per_epoch=512 * 256,
        num_samples_sans_final_epoch=512 * 256,
        separate_final_epoch=False,
    )
    order = build_block_document_index(np.arange(len(numbers)), numbers, plan, BlockShuffle(window_blocks=window), 1)
    found = shuffle_quality(order)
    assert not found.is_uniform
    assert found.within == pytest.approx(1 / window, rel=0.3)
    assert (found.verdict == "shuffled within blocks of about 260") == (window == 1)


def test_what_is_no_order_is_refused():
    with pytest.raises(ConfigError, match=r"expected items in \[0, 2\), found 2"):
        shuffle_quality([0, 2], num_items=2)
    with pytest.raises(ConfigError, match=r"expected 2 positions that rise, found 2: \[1, 1\]"):
        shuffle_quality([0, 1], positions=[1, 1])
