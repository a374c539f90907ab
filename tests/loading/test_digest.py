"""Digests of samples. That ranks compare them is tested with real processes in `tests/distributed`."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from tests.support import make_dataset, random_documents, write_corpus

from tokenloom.loading.digest import check_same_batches, digest_of_samples


class Arrays:
    """A dataset of given arrays, by their first axis."""

    def __init__(self, **arrays):
        self.arrays = arrays

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def batch(self, positions):
        return {name: array[list(positions)] for name, array in self.arrays.items()}


TOKENS = np.arange(6, dtype="<i8").reshape(3, 2)


def test_the_digest_is_that_of_names_dtypes_shapes_and_bytes():
    expected = hashlib.sha256()
    for position in (2, 0):
        expected.update(f"{position}\0tokens\0<i8\0(1, 2)\0".encode() + TOKENS[position].tobytes())
    assert digest_of_samples(Arrays(tokens=TOKENS), [2, 0]) == expected.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        Arrays(labels=TOKENS),
        Arrays(tokens=TOKENS.astype("<u8")),
        Arrays(tokens=TOKENS.reshape(3, 1, 2)),
        Arrays(tokens=np.add(TOKENS, [0, 1])),
        Arrays(tokens=TOKENS, labels=TOKENS),
        Arrays(tokens=TOKENS[::-1]),
    ],
)
def test_any_difference_changes_the_digest(other):
    assert digest_of_samples(other, [0, 1]) != digest_of_samples(Arrays(tokens=TOKENS), [0, 1])


def test_arrays_need_not_be_contiguous():
    apart = Arrays(tokens=np.repeat(TOKENS, 2, axis=1)[:, ::2], mask=np.broadcast_to(TOKENS[0], (3, 2)))
    together = Arrays(tokens=TOKENS, mask=np.tile(TOKENS[0], (3, 1)))
    assert digest_of_samples(apart, range(3)) == digest_of_samples(together, range(3))


def test_datasets_built_alike_have_the_same_digest(tmp_path, rng):
    prefix = write_corpus(tmp_path / "data", random_documents(rng, count=20, longest=30, vocab_size=50))
    first, second = (make_dataset(prefix, in_memory=True, num_samples=50) for _ in range(2))
    other = make_dataset(prefix, in_memory=True, num_samples=50, random_seed=58)
    assert digest_of_samples(first, range(50)) == digest_of_samples(second, range(50))
    assert digest_of_samples(first, range(50)) != digest_of_samples(other, range(50))


def test_alone_there_is_nothing_to_compare_but_samples_are_read():
    check_same_batches(Arrays(tokens=TOKENS))
    check_same_batches(None)

    class Broken(Arrays):
        def batch(self, positions):
            raise IndexError("no such sample")

    with pytest.raises(IndexError, match="no such sample"):
        check_same_batches(Broken(tokens=TOKENS))
