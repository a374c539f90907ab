from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tokenloom.errors import ConfigError
from tokenloom.inputs.records import Texts
from tokenloom.preprocess.selection import first_occurrences, hash_documents, hash_of_text, split_of

hash_rows = st_numpy.arrays(np.uint64, st.tuples(st.integers(0, 30), st.just(2)))
few_hashes = st_numpy.arrays(
    np.uint64, st.tuples(st.integers(0, 12), st.just(2)), elements=st.sampled_from([0, 1, 2**63, 2**64 - 1])
)


def documents(*rows: list[str]) -> Texts:
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    return Texts(texts=[text for row in rows for text in row], document_ends=ends)


def test_hash_is_that_of_framed_texts():
    framed = b"".join(
        number.to_bytes(8, "little") + data for number, data in [(2, b""), (1, b"a"), (3, "é\0".encode()), (0, b"")]
    )
    [found] = hash_documents([documents(["a", "é\0"]), documents([])], 1)
    assert found.astype("<u8").tobytes() == hashlib.blake2b(framed, digest_size=16).digest()


def test_boundaries_matter():
    cut = [["ab"], ["a", "b"], ["", "ab"], ["ab", ""], ["a\0b"], [], [""]]
    hashes = hash_documents([documents(*cut)], len(cut))
    assert (hashes.dtype, hashes.shape) == (np.uint64, (7, 2))
    assert len(np.unique(hashes, axis=0)) == 7
    keys = hash_documents([documents(["a"], [], ["a"]), documents([], ["a"], ["a"])], 3)
    assert len(np.unique(keys, axis=0)) == 3


def slow_split(row: list[int], seed: int, shares: list[float]) -> int:
    def mixed(number: int) -> int:
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
        return number ^ number >> 31

    number = mixed(row[0] ^ mixed(seed) ^ row[1])
    exact = [Fraction(share) for share in shares]
    for index in range(len(shares)):
        if number < sum(exact[: index + 1]) / sum(exact) * 2**64 // 1:
            return index
    raise AssertionError


@given(
    hashes=hash_rows,
    seed=st.integers(0, 2**64 - 1),
    shares=st.lists(st.sampled_from([0, 0.1, 1 / 3, 1, 7, 1e-300, 1e300]), min_size=1, max_size=5).filter(any),
)
def test_bounds_are_exact(hashes: np.ndarray, seed: int, shares: list[float]):
    expected = [slow_split(row, seed, shares) for row in hashes.tolist()]
    assert split_of(hashes, seed=seed, shares=shares).tolist() == expected


@pytest.mark.parametrize("shares", [[], [0, 0], [-1, 2], [float("nan")], [1] * 128])
def test_shares_that_are_none_are_refused(shares: list):
    with pytest.raises(ConfigError, match="`shares`: must be 1 to 127 numbers >= 0, not all 0, got"):
        split_of(np.empty((0, 2), dtype=np.uint64), seed=1, shares=shares)


@given(shards=st.lists(few_hashes, max_size=4), memory_bytes=st.sampled_from([192, 700, 2000, 1 << 20]))
def test_first_occurrences_are_those_seen_first(shards: list[np.ndarray], memory_bytes: int):
    masks = first_occurrences(shards, memory_bytes=memory_bytes)
    assert all(mask.dtype == np.bool_ for mask in masks)
    rows = [tuple(row) for shard in shards for row in shard.tolist()]
    expected = [row not in rows[:number] for number, row in enumerate(rows)]
    assert [is_first for mask in masks for is_first in mask.tolist()] == expected
    assert [len(mask) for mask in masks] == [len(shard) for shard in shards]


@given(st.text(max_size=20))
def test_a_text_is_found_by_the_hash_of_its_document(text: str):
    [found] = hash_documents([Texts(texts=[text.encode("utf-8", "replace").decode()])], 1)
    assert (hash_of_text(text) == found).all()
    assert (hash_of_text(text.encode("utf-8", "replace")) == found).all()
    assert (hash_of_text(text + "\n") != found).any()
