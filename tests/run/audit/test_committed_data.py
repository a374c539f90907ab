"""Hashes of documents and blocks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.computed_keys import source_key
from tokenloom.run.audit import committed_data
from tokenloom.run.audit.committed_data import document_digest, hash_documents, hash_of_document, hash_pair
from tokenloom.run.sources import lock_pair

KEY = source_key(1, "web")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.int64])
def test_the_digest_of_a_document_is_of_its_numbers(dtype):
    plain = hashlib.sha256(bytes([1, 0, 0, 0, 100, 0, 0, 0])).digest()
    assert document_digest(np.array([1, 100], dtype=dtype)) == plain
    assert document_digest(np.array([], dtype=dtype)) == hashlib.sha256().digest()


@pytest.mark.parametrize(("token", "dtype"), [(-1, np.int16), (-1, np.int32), (2**32, np.int64)])
def test_other_numbers_take_eight_bytes(token, dtype):
    expected = hashlib.sha256(np.array([5, token], dtype="<i8").tobytes()).digest()
    assert document_digest(np.array([5, token], dtype=dtype)) == expected


@pytest.mark.parametrize("at_once", [1, 10, 1 << 20])
def test_documents_are_hashed_one_by_one(tmp_path, monkeypatch, rng, at_once):
    monkeypatch.setattr(committed_data, "_AT_ONCE", at_once)
    documents = [rng.integers(-3, 50, size=int(size)).tolist() for size in rng.integers(0, 9, size=600)]
    prefix = write_corpus(tmp_path / "pair", documents, dtype=np.int32)
    pair = IndexedDataset(prefix)
    expected = [hash_of_document(document_digest(np.array(tokens, dtype=np.int64))) for tokens in documents]
    found = [each for block in range(3) for each in hash_documents(pair, block)]
    assert found == expected
    read = []
    hashed = hash_pair(pair, lock_pair(prefix), key=KEY, number=0, num_threads=2, progress=read.append)
    assert sum(read) == 4 * sum(map(len, documents))
    assert hashed.sums.tolist() == [sum(map(len, documents[first : first + 256])) for first in range(0, 600, 256)]
    assert len(hashed.blocks) == 3


def test_an_empty_pair(tmp_path):
    prefix = write_corpus(tmp_path / "pair", [])
    hashed = hash_pair(IndexedDataset(prefix), lock_pair(prefix), key=KEY, number=0, num_threads=1)
    assert (hashed.blocks, hashed.roots.blocks) == ((), hashlib.sha256().hexdigest())
