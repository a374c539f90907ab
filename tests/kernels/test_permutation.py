"""Keys and permutations of the computed order: values for ever, against the twin, and how random they look."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import permutation as twin

from tokenloom import kernels
from tokenloom.kernels import Key, Purpose

WORDS = st.integers(0, 2**64 - 1)
KEYS = st.builds(Key, WORDS, WORDS)
SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 2**60), st.sampled_from([1024, 1025, 65535, 65536, 2**60]))
KEY = Key(0x0123456789ABCDEF, 0xFEDCBA9876543210)


def integers(values):
    return np.array(values, dtype=np.int64)


def forward(n, key, places=None):
    return kernels.Permutation(n, key).forward(integers(np.arange(n) if places is None else places))


def digest(values):
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:32]


def test_golden_keys():
    assert kernels.derive(Key(0, 0), 0, 0) == Key(0x3EB6011B1349705B, 0xB6C40F83D22B9FD9)
    assert kernels.derive(KEY, Purpose.WINDOWS, 7) == Key(0x1D8044AAC83FE10F, 0xD5068400CAD24602)
    assert kernels.derive(KEY, Purpose.SAMPLES, 2**64 - 1) == Key(0xB893722BF8A07466, 0xB163B6C23ED85A87)


def test_golden_permutations():
    assert forward(0, KEY).tolist() == []
    assert forward(1, KEY).tolist() == [0]
    assert forward(10, KEY).tolist() == [0, 3, 2, 8, 5, 9, 7, 1, 4, 6]
    assert forward(1025, KEY, range(8)).tolist() == [438, 173, 244, 790, 687, 909, 455, 540]
    assert forward(65536, KEY, range(6)).tolist() == [65385, 15644, 31310, 53608, 42047, 35489]
    assert forward(2**60, KEY, [0, 1, 2**60 - 1]).tolist() == [
        496617124778840235,
        484990898281189734,
        993905031587559202,
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (2, "9d34149fbd1fe777eb238799054c8cbf"),
        (100, "a9c98c2d6e0196722dbff4b40c06be19"),
        (1024, "2f70938ed973953f9de9e489e85ee37b"),
        (1025, "dfb4b2c5011382c8304961b07a4252c1"),
        (65535, "8c6ae9144a594acbfe86ad84994a7b59"),
        (65536, "8654e18003e5955d19f91e7c8873327b"),
        (1_000_003, "cbc22ac4dec624d81726bc411355b446"),
    ],
)
def test_golden_digests(n, expected):
    assert digest(forward(n, KEY)) == expected


@pytest.mark.parametrize("number", [23289, 54604])  # it happens to one table of 16,000
def test_a_draw_that_would_favour_some_partners_is_drawn_again(number):
    key = kernels.derive(KEY, Purpose.MIXING, number)
    assert forward(1024, key).tolist() == twin.fisher_yates(key, 1024)


@given(key=KEYS, purpose=st.integers(0, 2**64 - 1), number=WORDS)
def test_derived_keys_equal_the_twin(key, purpose, number):
    assert kernels.derive(key, purpose, number) == twin.derive(key, purpose, number)


@given(key=KEYS, bit=st.integers(0, 255))
def test_both_halves_of_a_key_depend_on_every_bit(key, bit):
    given = [*key, 3, 4]
    changed = list(given)
    changed[bit // 64] ^= 1 << bit % 64
    before, after = (kernels.derive(Key(low, high), purpose, number) for low, high, purpose, number in (given, changed))
    assert all(8 <= (one ^ other).bit_count() <= 56 for one, other in zip(before, after, strict=True))


@given(n=SIZES, key=KEYS, seed=st.integers(0, 2**32 - 1))
@example(n=1, key=KEY, seed=0)
@example(n=1024, key=KEY, seed=0)
@example(n=1025, key=KEY, seed=0)
def test_permutations_equal_the_twin(n, key, seed):
    places = np.random.default_rng(seed).integers(0, n, size=150)  # some in whole groups of lanes, some alone
    ours, other = kernels.Permutation(n, key), twin.Permutation(n, key)
    assert len(ours) == n
    assert ours.forward(places).tolist() == [other.forward(place) for place in places.tolist()]
    assert ours.inverse(places).tolist() == [other.inverse(place) for place in places.tolist()]


@pytest.mark.parametrize(
    "n", [*range(1, 40), *range(40, 2200, 27), *range(2200, 70_000, 1_999), 1024, 1025, 65535, 65536]
)
def test_every_thing_has_one_place(n, seed):
    permutation = kernels.Permutation(n, Key(seed, n))
    things = permutation.forward(np.arange(n))
    np.testing.assert_array_equal(np.sort(things), np.arange(n))
    np.testing.assert_array_equal(permutation.inverse(things), np.arange(n))


@pytest.mark.parametrize("exponent", range(11, 61))
def test_places_are_found_again_around_powers_of_two(exponent, rng):
    for n in {2**exponent - 1, 2**exponent, min(2**exponent + 1, 2**60)}:
        permutation = kernels.Permutation(n, Key(exponent, n))
        places = np.concatenate([rng.integers(0, n, size=2000), [0, n - 1]])
        things = permutation.forward(places)
        assert things.min() >= 0
        assert things.max() < n
        np.testing.assert_array_equal(permutation.inverse(things), places)
        np.testing.assert_array_equal(permutation.forward(permutation.inverse(places)), places)


def excess(found, expected):
    """Returns by how many standard deviations chi-squared exceeds what chance gives."""
    degrees = len(found) - 1
    return (((found - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


PERMUTED_TO_LOOK_AT = [2, 50, 1000, 1024, 1056, 65_535, 2**40 + 1]


@pytest.mark.slow
@pytest.mark.parametrize("n", PERMUTED_TO_LOOK_AT)
def test_a_thing_is_anywhere_with_equal_probability(n):
    bins = min(n, 64)
    places = np.array([0, n // 2, n - 1])
    drawn = np.array([forward(n, kernels.derive(KEY, 1, number), places) for number in range(20_000)])
    sizes = np.array([-(-n * (i + 1) // bins) - -(-n * i // bins) for i in range(bins)])
    for column in drawn.T:
        found = np.bincount([int(value) * bins // n for value in column.tolist()], minlength=bins)
        assert abs(excess(found, len(drawn) * sizes / n)) < 6


@pytest.mark.slow
@pytest.mark.parametrize("n", [size for size in PERMUTED_TO_LOOK_AT if size >= 1000])
@pytest.mark.parametrize("far", [False, True])
def test_neighbours_are_anywhere_with_equal_probability(n, far):
    bins = 16
    distance = twin.Permutation(n, KEY).rows if far and n > 1024 else 1  # far: one half of the network is the same
    first = np.arange(0, 200 * 7, 7) % (n - distance)
    pairs = np.concatenate(
        [
            np.stack([permutation.forward(first), permutation.forward(first + distance)])
            for permutation in (kernels.Permutation(n, kernels.derive(KEY, 2, number)) for number in range(2_000))
        ],
        axis=1,
    )
    found = np.bincount((pairs[0] * bins // n) * bins + pairs[1] * bins // n, minlength=bins * bins)
    assert abs(excess(found, pairs.shape[1] / bins**2)) < 8
    differences = (pairs[1] - pairs[0]) % n
    found = np.bincount((differences - 1) * 64 // (n - 1), minlength=64)
    sizes = np.bincount(np.arange(n - 1) * 64 // (n - 1), minlength=64) / (n - 1) if n < 2**20 else np.ones(64) / 64
    assert abs(excess(found, pairs.shape[1] * sizes)) < 8


def test_many_threads_give_the_same(rng):
    for n in (1000, 5000, 10**12):
        permutation = kernels.Permutation(n, KEY)
        places = rng.integers(0, n, size=20_000)
        alone = permutation.forward(places)
        with ThreadPoolExecutor(8) as threads:
            assert all((one == alone).all() for one in threads.map(permutation.forward, [places] * 16))
            assert all((one == places).all() for one in threads.map(permutation.inverse, [alone] * 16))


@pytest.mark.parametrize("n", [-1, 2**60 + 1])
def test_sizes_that_cannot_be_permuted(n):
    with pytest.raises(ValueError, match=rf"expected between 0 and 2\*\*60 things, found {n}"):
        kernels.Permutation(n, KEY)


@pytest.mark.parametrize("n", [0, 5, 5000])
def test_places_outside_are_our_own_bug(n):
    permutation = kernels.Permutation(n, KEY)
    for value in (-1, n):
        with pytest.raises(IndexError, match=rf"expected places in \[0, {n}\), found {value}"):
            permutation.forward(integers([value]))
        with pytest.raises(IndexError, match=rf"expected things in \[0, {n}\), found {value}"):
            permutation.inverse(integers([value]))


def test_golden_digest_of_a_large_permutation():
    assert (
        digest(forward(2**60 - 1, KEY, np.arange(10_000, dtype=np.int64) * 2**46)) == "f46ae02231d8b0bdac786496bb04a756"
    )
