"""Insertion of items, checksums, rows and digests, compared with NumPy, zlib and readable references."""

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import index_rows
from tests.reference import sample_digest as twin

from tokenloom._native import DigestSums, check_rows, first_fall
from tokenloom.kernels.storage import crc32
from tokenloom.loading.sample_digests import digest_tokens
from tokenloom.preprocess.blocks import insert_items


def test_values_come_before_their_places():
    items, places, values = np.array([1, 2, 3], np.uint16), np.array([0, 2, 2, 3]), np.array([7, 8, 9, 6], np.uint16)
    found = insert_items(items, places, values)
    assert (found.tolist(), found.dtype) == ([7, 1, 2, 8, 9, 3, 6], np.uint16)
    assert insert_items(items[:0], places[:0], values[:0]).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float64])
@given(items=st.lists(st.integers(0, 200), max_size=20), places=st.lists(st.integers(0, 20), max_size=9))
def test_all_is_as_numpy_inserts(dtype: type, items: list[int], places: list[int]):
    array = np.array(items, dtype=dtype)
    rising = np.array(sorted(min(place, len(items)) for place in places), dtype=np.int64)
    values = np.arange(len(rising)).astype(dtype)
    found = insert_items(array, rising, values)
    assert (found.dtype, found.tolist()) == (dtype, np.insert(array, rising, values).tolist())
    assert insert_items(np.repeat(array, 2)[::2], rising, values).tolist() == found.tolist()


# --- checksums and rows ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_a_checksum_is_that_of_zlib(data, before):
    assert crc32(data, before) == zlib.crc32(data, before)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 79, 80, 127, 128, 129, 4096, 100_003])
@pytest.mark.parametrize("offset", [0, 7])
def test_a_checksum_needs_no_alignment(seed, size, offset):
    data = np.random.default_rng(seed).integers(0, 256, size + offset, dtype=np.uint8)[offset:]
    assert crc32(data) == zlib.crc32(data)
    half = size // 2
    assert crc32(data[half:], crc32(data[:half])) == zlib.crc32(data)


NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    st.integers(0, 2**40),
    st.sampled_from([1, 2, 4, 8]),
    st.none() | st.tuples(st.integers(0, 19), st.booleans(), NUMBERS),
)
def test_the_first_wrong_row_is_found(lengths, start, itemsize, damage):
    ends = [start + itemsize * sum(lengths[:row]) for row in range(len(lengths) + 1)]
    pointers = ends[:-1]
    if damage is not None and damage[0] < len(lengths):
        row, is_length, value = damage
        if is_length:
            lengths[row] = max(-(2**31), min(2**31 - 1, value))
        else:
            pointers[row] = value
    unaligned = np.frombuffer(b"xx" + np.array(lengths, np.int32).tobytes(), np.uint8)[2:].view(np.int32)
    found = check_rows(unaligned, np.array(pointers, dtype=np.int64), start=start, itemsize=itemsize)
    assert found == index_rows.check_rows(lengths, pointers, start=start, itemsize=itemsize)


@given(st.lists(st.integers(0, 5) | NUMBERS, max_size=12))
def test_the_first_fall_is_found(boundaries):
    assert first_fall(np.array(boundaries, dtype=np.int64)) == index_rows.first_fall(boundaries)


# --- digests of tokens and positions: recorded values, the reference, and the changes they detect -------------------
LENGTHS = [0, 1, 7, 8, 9, 511, 512, 513, 2047, 2048, 2049, 2500, 4096]
VALUES = {"small": (0, 50_000), "of 32 bits": (-(2**31), 2**31), "of 64 bits": (-(2**63), 2**63)}


def digest(positions, tokens):
    """Returns the digest of all samples as two integers."""
    sums = DigestSums()
    sums.add(positions, digest_tokens(tokens))
    assert (sums.num_batches, sums.num_samples) == (1, len(tokens))
    return sums.low, sums.high


def test_golden_values():
    assert digest([0], np.zeros((1, 0), np.int64)) == (0xCA4AC3881B7C90FD, 0x4BFFD802EBFB15E4)
    assert digest([7], np.array([[1, 2, 3]])) == (0xA569DEC57F7E8291, 0x47A0E2C17BDC3C70)
    assert digest([2**40], np.arange(5000)[np.newaxis]) == (0xC1B799F9A36EB6A3, 0x879C8140E73DF82D)
    assert digest([1, 2], np.array([[-1, 2**62], [-(2**63), 0]])) == (0x2B59233B88C88184, 0x32CA4C3D845A7AB6)


@pytest.mark.parametrize(
    ("values", "length"), [*(("small", length) for length in LENGTHS), *((name, 513) for name in VALUES)]
)
def test_like_the_twin(length, values, rng):
    tokens = rng.integers(*VALUES[values], (3, length), dtype=np.int64)
    positions = rng.integers(0, 2**50, 3)
    expected = twin.digest_samples(positions.tolist(), tokens.tolist())
    assert digest(positions, tokens) == expected
    if values != "of 64 bits":
        assert digest(positions, tokens.astype(np.int32)) == expected


@pytest.mark.parametrize("dtype", [">i8", "<i4", "<u2", ">u2", "<u8"])
def test_only_values_count(dtype, rng):
    tokens = rng.integers(0, 30_000, (2, 600))
    assert digest([3, 4], tokens.astype(dtype)) == digest([3, 4], tokens)
    assert digest([3, 4], np.asfortranarray(tokens)) == digest([3, 4], tokens)


@pytest.mark.parametrize("length", [1, 5, 8, 600, 2300])
def test_every_bit_of_every_token_counts(length, rng):
    tokens = rng.integers(0, 50_000, (1, length), dtype=np.int64)
    places = range(length) if length < 10 else [0, *(1 + rng.choice(length - 2, 6, replace=False)).tolist(), length - 1]
    changed = np.repeat(tokens, 64 * len(places), axis=0)
    for row, (place, bit) in enumerate(itertools.product(places, range(64))):
        changed[row, place] ^= np.int64(-(2**63)) if bit == 63 else np.int64(1 << bit)
    digests = np.concatenate([digest_tokens(tokens), digest_tokens(changed)])
    assert len(np.unique(digests[:, 0])) == len(np.unique(digests[:, 1])) == len(digests)


def test_tokens_that_change_places_count(rng):
    tokens = rng.permutation(50_000)[np.newaxis, :1100]
    pairs = [(0, 1), (0, 4), (0, 8), (3, 600), (0, 512), (511, 512), (1098, 1099)]
    pairs += [tuple(rng.choice(1100, 2, replace=False)) for _ in range(50)]
    swapped = np.repeat(tokens, len(pairs), axis=0)
    for row, (one, other) in enumerate(pairs):
        swapped[row, [one, other]] = swapped[row, [other, one]]
    assert not (digest_tokens(swapped) == digest_tokens(tokens)).any()


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.lists(st.integers(0, 99), min_size=3, max_size=3)), max_size=8),
    st.integers(0, 8),
)
def test_sums_of_parts_are_the_sum(samples, cut):
    positions = [position for position, _ in samples]
    digests = digest_tokens(np.array([tokens for _, tokens in samples], dtype=np.int64).reshape(-1, 3))
    parts, whole = DigestSums(), DigestSums()
    parts.add(positions[:cut], digests[:cut])
    parts.add(positions[cut:], digests[cut:])
    whole.add(positions[::-1], digests[::-1].copy())
    assert (parts.low, parts.high, parts.num_samples) == (whole.low, whole.high, whole.num_samples)
    assert (parts.num_batches, whole.num_batches) == (2, 1)
    assert whole.sums().tolist() == [whole.low, whole.high]
    assert parts.sums().reshape(2, 2).sum(axis=0, dtype=np.uint64).tolist() == [whole.low, whole.high]
