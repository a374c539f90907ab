"""Mixtures of the computed order: recorded values, the reference, evenness and degree of mixing."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import mixture as twin

from tokenloom.kernels.mixture import MixedStage, Mixture, smallest_weights
from tokenloom.kernels.permutation import Key

KEY = Key(0x0123456789ABCDEF, 0xFEDCBA9876543210)
LARGEST = 2**60

SMALL = st.lists(st.integers(1, 20), min_size=1, max_size=40)
SKEWED = st.lists(st.integers(0, 50).map(lambda exponent: 2**exponent), min_size=1, max_size=200)
ANY = st.lists(st.integers(1, LARGEST // 300), min_size=1, max_size=300)
WEIGHTS = SMALL | SKEWED | ANY
FIBONACCI = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def integers(values):
    return np.array(values, dtype=np.int64)


def listed(pair):
    return pair[0].tolist(), pair[1].tolist()


def digest(leaves, takes):
    joined = leaves.astype("<i4").tobytes() + takes.astype("<i8").tobytes()
    return hashlib.sha256(joined).hexdigest()[:32]


def drawn_weights(number):
    return [1 + (7 + 7919**2 * place) % 10**6 for place in range(number)]


def test_literal_mixtures_and_mixed_stages():
    assert listed(Mixture([5]).locate(np.arange(4))) == ([0, 0, 0, 0], [0, 1, 2, 3])
    assert listed(Mixture([1, 1]).locate(np.arange(5))) == ([0, 1, 0, 1, 0], [0, 0, 1, 1, 2])
    assert listed(Mixture([1, 3]).locate(np.arange(8))) == ([1, 0, 1, 1, 1, 0, 1, 1], [0, 0, 1, 2, 3, 1, 4, 5])
    expected = [0, 0, 1, 0, 0, 0, 0, 1, 0, 0], [0, 1, 0, 2, 3, 4, 5, 1, 6, 7]
    assert listed(Mixture([8, 2]).locate(np.arange(10))) == expected
    assert listed(Mixture([1, 1, 2]).locate(np.arange(8))) == ([0, 2, 1, 2, 0, 2, 1, 2], [0, 0, 0, 1, 1, 2, 1, 3])
    assert Mixture([1, 1, 2]).counts(8).tolist() == [2, 2, 4]
    assert len(Mixture([1, 1, 2])) == 3
    even = MixedStage([1, 1], 0, 6, 1, KEY)
    assert listed(even.locate(np.arange(6))) == ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2])
    mixed = MixedStage([1, 1], 100, 10, 4, KEY)
    assert listed(mixed.locate(np.arange(10))) == ([0, 0, 1, 1, 1, 1, 0, 0, 0, 1], [1, 0, 0, 1, 3, 2, 2, 3, 4, 4])
    assert (mixed.counts(8).tolist(), len(mixed)) == ([4, 4], 10)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2, ("c62e69c3643e86f43370a8075b10c0c0", "61e34cb33c9d26f5b63a4808eaaf4db2")),
        (3, ("eb249f22a892822a106396193006584a", "f68b847b7bd4e750e2d6041e79da080d")),
        (10, ("fba29682ef6587f8690e83c5610115e5", "50effb0a544b0ed79b7edb39068d6ed1")),
        (1000, ("fa00440c6b5a2cae232e77e145648439", "ff3dbaae949779b7fdea9c3e958ecc58")),
        (40_000, ("718616577c308bdcf7eb7045c45d916d", "fa67f553a384e6db4e3e79a3032e1e9d")),
    ],
)
def test_golden_digests(number, expected):
    weights = drawn_weights(number)
    positions = np.concatenate([np.arange(20_000), np.arange(20_000) * 10**13])
    stage = MixedStage(weights, 12_345, 20_000, 1024, KEY)
    assert (digest(*Mixture(weights).locate(positions)), digest(*stage.locate(np.arange(20_000)))) == expected


@given(weights=WEIGHTS, positions=st.lists(st.integers(0, 2**62 - 1) | st.integers(0, 10**6), min_size=1, max_size=30))
@example(weights=[1], positions=[0, 2**62 - 1])
@example(weights=[LARGEST - 1, 1], positions=list(range(20)))
def test_mixtures_equal_the_twin(weights, positions):
    ours, other = Mixture(weights), twin.Mixture(weights)
    leaves, takes = ours.locate(integers(positions))
    assert list(zip(leaves.tolist(), takes.tolist(), strict=True)) == [other.locate(k) for k in positions]
    assert ours.positions(leaves, takes).tolist() == positions
    for k in (0, *positions[:5], 2**62):
        assert ours.counts(k).tolist() == other.counts(k)


BLOCKS = st.integers(2, 1100) | st.integers(2, 10**4)


@given(SMALL | SKEWED, st.integers(0, 2**40), st.integers(1, 5000), BLOCKS, st.integers(0, 2**32 - 1))
def test_mixed_stages_equal_the_twin(weights, start, size, block, seed):
    stage = MixedStage(weights, start, size, block, KEY)
    offsets = np.random.default_rng(seed).integers(0, size, size=3)
    leaves, takes = stage.locate(offsets)
    assert list(zip(leaves.tolist(), takes.tolist(), strict=True)) == [
        twin.locate_mixed(weights, start, size, block, KEY, offset) for offset in offsets.tolist()
    ]


@given(weights=WEIGHTS, k=st.integers(1, 3000))
def test_takes_of_a_leaf_count_up_and_are_found_again(weights, k):
    mixture = Mixture(weights)
    leaves, takes = mixture.locate(np.arange(k))
    assert np.bincount(leaves, minlength=len(weights)).tolist() == mixture.counts(k).tolist()
    for leaf in set(leaves.tolist()):
        assert takes[leaves == leaf].tolist() == list(range((leaves == leaf).sum()))
    np.testing.assert_array_equal(mixture.positions(leaves, takes), np.arange(k))


@given(weights=WEIGHTS, seed=st.integers(0, 2**32 - 1), times=st.integers(1, 10**6))
@example(weights=FIBONACCI, seed=0, times=1)
@example(weights=[1] * 300, seed=0, times=1000)
@example(weights=[LARGEST // 3, LARGEST // 3], seed=0, times=1)
@example(weights=[1, LARGEST - 1], seed=0, times=1)
def test_no_leaf_misses_its_share_by_two_and_whole_shares_are_exact(weights, seed, times):
    mixture, total = Mixture(weights), sum(weights)
    more = [min(times, LARGEST // total) * weight for weight in weights]
    assert mixture.counts(sum(more)).tolist() == more
    positions = np.concatenate([np.arange(300), np.arange(300) * 2**50])
    assert listed(mixture.locate(positions)) == listed(Mixture(more).locate(positions))  # only ratios count
    assert smallest_weights(more) == smallest_weights(weights)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.integers(0, most, size=30) for most in (10**6, LARGEST)])
    for k in [*range(64), *drawn.tolist(), LARGEST]:
        for taken, weight in zip(mixture.counts(k).tolist(), weights, strict=True):
            assert abs(taken - Fraction(weight * k, total)) < 2


@given(SMALL, st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 6000), st.integers(0, 10**9))
def test_mixing_changes_nothing_of_what_a_block_holds_nor_of_whole_blocks(weights, size, more, block, start):
    stage = MixedStage(weights, start, size, block, KEY)
    whole = np.arange(size // block * block)
    assert listed(stage.locate(whole)) == listed(MixedStage(weights, start, size + more, block, KEY).locate(whole))
    mixed, even = stage.locate(np.arange(size)), Mixture(weights).locate(np.arange(size))
    for begin in range(0, size, block):
        part = slice(begin, begin + block)
        held, expected = (sorted(zip(a[part].tolist(), b[part].tolist(), strict=True)) for a, b in (mixed, even))
        assert held == expected
    np.testing.assert_array_equal(stage.offsets(*mixed), np.arange(size))
    for k in {size, *range(0, size, block)}:
        assert stage.counts(k).tolist() == np.bincount(mixed[0][:k], minlength=len(weights)).tolist()


def test_many_threads_give_the_same(rng):
    stages = [MixedStage(list(range(1, 100)), 5, 200_000, block, KEY) for block in (1, 100, 1024, 5000)]
    questions = [(stage, rng.integers(0, len(stage), size=3000)) for stage in stages for _ in range(8)]
    alone = [stage.locate(offsets) for stage, offsets in questions]

    def ask(question):
        stage, offsets = question
        found = stage.locate(offsets)
        assert (stage.offsets(*found) == offsets).all()
        return found

    with ThreadPoolExecutor(8) as threads:
        for expected, found in zip(alone, threads.map(ask, questions), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "a mixture needs at least one weight"),
        ([1, 0], "weight 0 of leaf 1 is below 1"),
        ([-5], "weight -5 of leaf 0 is below 1"),
        ([LARGEST, 1], rf"the sum of weights is {LARGEST + 1}; the maximum is 2\*\*60"),
        ([10**30], rf"the sum of weights is {10**30}; the maximum is 2\*\*60"),
    ],
)
def test_weights_that_cannot_be(weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture(weights)
    with pytest.raises(ValueError, match=message):
        MixedStage(weights, 0, 10, 1, KEY)


def test_smallest_weights():
    assert smallest_weights([8, 2]) == [4, 1]
    assert smallest_weights([10**40]) == [1]
    assert smallest_weights([3 * 10**40, 10**40]) == [3, 1]
    assert smallest_weights([10**40 + 1, 10**40]) == [1, 1]
    with pytest.raises(ValueError, match="weight 0 of leaf 0"):
        smallest_weights([0])


@given(weights=st.lists(st.integers(1, 10**40), min_size=1, max_size=50))
@example(weights=[1, 10**40])
@example(weights=[10**40 + 1] * 3 + [10**40] * 4)
def test_weights_of_any_size_become_weights_of_a_mixture(weights):
    smallest, total = smallest_weights(weights), sum(weights)
    assert min(smallest) >= 1
    assert sum(smallest) <= LARGEST
    for small, weight in zip(smallest, weights, strict=True):
        assert abs(Fraction(small, sum(smallest)) - Fraction(weight, total)) <= Fraction(len(weights) + 1, LARGEST)
    Mixture(smallest)


def test_samples_beyond_all_positions_have_no_position():
    mixture = Mixture([1, LARGEST - 1])
    leaves = np.array([0, 0, 0, 1, 1], dtype=np.int32)
    found = mixture.positions(leaves, integers([3, 4, 2**63 - 1, 2**61, 2**63 - 1])) >= 0
    assert found.tolist() == [True, False, False, True, False]
    for block in (1, 10):
        stage = MixedStage([1, 1], 0, 25, block, KEY)
        assert stage.offsets(np.array([0, 1, 0], dtype=np.int32), integers([13, 12, 2**62])).tolist() == [-1, -1, -1]
        assert stage.offsets(np.array([0, 1], dtype=np.int32), integers([12, 11])).min() >= 0
