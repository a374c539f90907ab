"""Digests of samples, and their text form."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import sample_digest as twin

from tokenloom.errors import ConfigError
from tokenloom.loading.digest import RangeDigest, ReadingDigest, check_same_batches, digest_of_samples, digests_of_batch

TOKENS = np.arange(12, dtype=np.int64).reshape(4, 3)
RUN = "35cbb0f6a6ad1ea6"


def digest(positions, tokens):
    found = ReadingDigest()
    found.add(positions, tokens)
    return found


def test_a_digest_is_that_of_the_twin_and_of_earlier_versions():
    found = digest([5, 6, 9, 2], TOKENS)
    assert (found.low, found.high) == twin.digest_samples([5, 6, 9, 2], TOKENS.tolist())
    assert found.num_samples == 4
    assert found.hexdigest() == f"{found.high:016x}{found.low:016x}"
    assert pickle.loads(pickle.dumps(found)) == found
    assert ReadingDigest.from_hex(found.hexdigest(), num_samples=4) == found
    assert digest([0, 1], np.array([[1, 2, 3], [4, 5, 6]])).hexdigest() == "fa4b3a33e00d22322050e71edcad412b"


@given(st.permutations(range(4)), st.integers(0, 4))
def test_the_digest_does_not_depend_on_order_and_batches(order, cut):
    rows = np.array(order)
    parts = digest(rows[:cut], TOKENS[rows[:cut]]) + digest(rows[cut:].tolist(), torch.from_numpy(TOKENS[rows[cut:]]))
    assert parts == digest(range(4), TOKENS)


def test_repeated_samples_count_and_padding_does_not():
    assert digest([1, 1], TOKENS[:2]) != digest([1], TOKENS[:1])
    assert digest([0, 0, 0], TOKENS[[0, 0, 0]]) != digest([0], TOKENS[:1])
    assert digest([3, None, 7, None], TOKENS) == digest([3, 7], TOKENS[[0, 2]])
    assert digest([None], TOKENS[:1]) == ReadingDigest()


def test_samples_of_any_lengths():
    vectors = [TOKENS[0], torch.arange(7), np.zeros(0, np.int32)]
    expected = digest([4], TOKENS[:1]) + digest([5], np.arange(7)[np.newaxis]) + digest([6], np.zeros((1, 0), np.int8))
    assert digest([4, 5, 6], vectors) == expected
    batch = [{"tokens": vector} for vector in vectors]
    assert digests_of_batch(batch, 3)[0].tolist() == digests_of_batch({"tokens": TOKENS}, 4)[0].tolist()


@pytest.mark.parametrize("tokens", [TOKENS[:3], TOKENS * 1.5, TOKENS[0], [TOKENS[0]]])
def test_invalid_tokens_are_refused(tokens):
    with pytest.raises(ConfigError, match=r"`tokens`: must be integers \[4 samples, length\], got"):
        digest(range(4), tokens)
    with pytest.raises(ConfigError, match="`positions`: must be 0 or more, got"):
        digest([3, -1], TOKENS[:2])


def test_ranges_are_parsed_and_added():
    one, other = (
        RangeDigest(run=RUN, start=start, stop=start + 2, digest=digest([start, start + 1], TOKENS[start : start + 2]))
        for start in (0, 2)
    )
    assert str(other) == f"1:{RUN}:2-4:{other.digest.hexdigest()}"
    assert RangeDigest.parse(str(other)) == other
    assert one + other == RangeDigest(run=RUN, start=0, stop=4, digest=digest(range(4), TOKENS))
    with pytest.raises(ConfigError, match=f"digest {one} does not start where {other}"):
        _ = other + one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"1:{RUN}:1-2:{'0' * 31}", "is not a digest such as 1:RUN:START-STOP:0000"),
        (f"1:{RUN}:1-2:{'0' * 32}\n", "is not a digest"),
        (f"2:{RUN}:1-2:{'0' * 32}", "digest version: expected 1, found 2"),
        (f"1:{RUN}:3-2:{'0' * 32}", "is not a digest"),
    ],
)
def test_invalid_ranges_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        RangeDigest.parse(text)


class Arrays:
    def __init__(self, **arrays):
        self.arrays = arrays

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def batch(self, positions):
        return {name: array[list(positions)] for name, array in self.arrays.items()}


ROWS = np.arange(6, dtype="<i8").reshape(3, 2)


def test_the_digest_is_that_of_names_dtypes_shapes_and_bytes():
    expected = hashlib.sha256()
    for position in (2, 0):
        expected.update(f"{position}\0tokens\0<i8\0(1, 2)\0".encode() + ROWS[position].tobytes())
    assert digest_of_samples(Arrays(tokens=ROWS), [2, 0]) == expected.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        Arrays(labels=ROWS),
        Arrays(tokens=ROWS.astype("<u8")),
        Arrays(tokens=ROWS.reshape(3, 1, 2)),
        Arrays(tokens=np.add(ROWS, [0, 1])),
        Arrays(tokens=ROWS, labels=ROWS),
        Arrays(tokens=ROWS[::-1]),
    ],
)
def test_any_difference_changes_the_digest(other):
    assert digest_of_samples(other, [0, 1]) != digest_of_samples(Arrays(tokens=ROWS), [0, 1])


def test_the_digest_is_that_of_contiguous_arrays():
    apart = Arrays(tokens=np.repeat(ROWS, 2, axis=1)[:, ::2], mask=np.broadcast_to(ROWS[0], (3, 2)))
    together = Arrays(tokens=ROWS, mask=np.tile(ROWS[0], (3, 1)))
    assert digest_of_samples(apart, range(3)) == digest_of_samples(together, range(3))


def test_a_single_process_only_reads_the_samples():
    check_same_batches(Arrays(tokens=ROWS))
    check_same_batches(None)

    class Broken(Arrays):
        def batch(self, positions):
            raise IndexError("no such sample")

    with pytest.raises(IndexError, match="no such sample"):
        check_same_batches(Broken(tokens=ROWS))
