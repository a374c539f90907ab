"""Keys and permutations of the computed order: recorded values, the reference, and tests of randomness."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import permutation as twin

from tokenloom.kernels.permutation import Key, Permutation, Purpose, derive

WORDS = st.integers(0, 2**64 - 1)
KEYS = st.builds(Key, WORDS, WORDS)
SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 2**60), st.sampled_from([1024, 1025, 65535, 65536, 2**60]))
KEY = Key(0x0123456789ABCDEF, 0xFEDCBA9876543210)


def integers(values):
    return np.array(values, dtype=np.int64)


def forward(n, key, places=None):
    return Permutation(n, key).forward(integers(np.arange(n) if places is None else places))


def digest(values):
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:32]


def test_golden_keys():
    assert derive(Key(0, 0), 0, 0) == Key(0x3EB6011B1349705B, 0xB6C40F83D22B9FD9)
    assert derive(KEY, Purpose.WINDOWS, 7) == Key(0x1D8044AAC83FE10F, 0xD5068400CAD24602)
    assert derive(KEY, Purpose.SAMPLES, 2**64 - 1) == Key(0xB893722BF8A07466, 0xB163B6C23ED85A87)


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


@pytest.mark.parametrize("number", [23289, 54604])  # one table in 16,000 has this case
def test_a_draw_that_would_favour_some_partners_is_drawn_again(number):
    key = derive(KEY, Purpose.MIXING, number)
    assert forward(1024, key).tolist() == twin.fisher_yates(key, 1024)


@given(key=KEYS, purpose=st.integers(0, 2**64 - 1), number=WORDS)
def test_derived_keys_equal_the_twin(key, purpose, number):
    assert derive(key, purpose, number) == twin.derive(key, purpose, number)


@given(n=SIZES, key=KEYS, seed=st.integers(0, 2**32 - 1))
@example(n=1, key=KEY, seed=0)
@example(n=1024, key=KEY, seed=0)
@example(n=1025, key=KEY, seed=0)
def test_permutations_equal_the_twin(n, key, seed):
    places = np.random.default_rng(seed).integers(0, n, size=150)  # full SIMD groups and a remainder
    ours, other = Permutation(n, key), twin.Permutation(n, key)
    assert len(ours) == n
    assert ours.forward(places).tolist() == [other.forward(place) for place in places.tolist()]
    assert ours.inverse(places).tolist() == [other.inverse(place) for place in places.tolist()]


@pytest.mark.parametrize(
    "n", [*range(1, 40), *range(40, 2200, 27), *range(2200, 70_000, 1_999), 1024, 1025, 65535, 65536]
)
def test_every_thing_has_one_place(n, seed):
    permutation = Permutation(n, Key(seed, n))
    things = permutation.forward(np.arange(n))
    np.testing.assert_array_equal(np.sort(things), np.arange(n))
    np.testing.assert_array_equal(permutation.inverse(things), np.arange(n))


@pytest.mark.parametrize("exponent", range(11, 61))
def test_places_are_found_again_around_powers_of_two(exponent, rng):
    for n in {2**exponent - 1, 2**exponent, min(2**exponent + 1, 2**60)}:
        permutation = Permutation(n, Key(exponent, n))
        places = np.concatenate([rng.integers(0, n, size=2000), [0, n - 1]])
        things = permutation.forward(places)
        assert things.min() >= 0
        assert things.max() < n
        np.testing.assert_array_equal(permutation.inverse(things), places)
        np.testing.assert_array_equal(permutation.forward(permutation.inverse(places)), places)


def test_golden_digest_of_a_large_permutation():
    assert (
        digest(forward(2**60 - 1, KEY, np.arange(10_000, dtype=np.int64) * 2**46)) == "f46ae02231d8b0bdac786496bb04a756"
    )
