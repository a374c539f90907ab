import hashlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import write_corpus

from tokenloom.indexed import dataset as identity
from tokenloom.indexed.dataset import IndexedDataset, dataset_identity
from tokenloom.storage.local import sampled_hash, spread_evenly

LONG_AGO = (1, 1)


@pytest.fixture
def prefix(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 9], [4, 5, 6]])
    for name in (f"{prefix}.bin", f"{prefix}.idx"):
        os.utime(name, ns=LONG_AGO)
    return prefix


@pytest.fixture
def hashed(monkeypatch):
    sources = []
    real = identity.sampled_hash
    monkeypatch.setattr(identity, "sampled_hash", lambda source: sources.append(source) or real(source))
    return sources


@pytest.mark.parametrize("mmap", [True, False])
def test_files_that_stay_as_they_are_are_read_once(prefix, hashed, mmap):
    dataset = IndexedDataset(prefix, mmap=mmap)
    before = dataset_identity(dataset)
    before["added"] = 1
    assert dataset_identity(dataset) == dataset_identity(IndexedDataset(prefix))
    assert len(hashed) == 4
    assert dataset_identity(pickle.loads(pickle.dumps(dataset)))["bin_sample"] == before["bin_sample"]
    assert len(hashed) == 6


def test_a_file_that_is_overwritten_in_place_is_another_one_whatever_its_times_say(prefix):
    dataset = IndexedDataset(prefix, mmap=False)
    before = dataset_identity(dataset)
    with open(f"{prefix}.bin", "r+b") as file:
        file.write(b"\x07\x00")
    os.utime(f"{prefix}.bin", ns=LONG_AGO)
    assert dataset_identity(dataset) != before


def test_a_file_that_was_changed_just_now_is_read_again(prefix, hashed):
    os.utime(f"{prefix}.bin")
    dataset = IndexedDataset(prefix)
    assert dataset_identity(dataset) == dataset_identity(dataset)
    assert len(hashed) == 4


def test_of_files_that_were_replaced_or_are_gone_those_that_are_open_count(prefix, hashed):
    dataset = IndexedDataset(prefix)
    before = dataset_identity(dataset)
    os.unlink(f"{prefix}.bin")
    assert dataset_identity(dataset) == before
    write_corpus(prefix, [[7], [8]])
    assert dataset_identity(dataset) == before
    assert len(hashed) == 6


PIECE = 512


def test_what_is_small_is_hashed_as_a_whole(rng):
    data = rng.integers(0, 256, size=32 * PIECE, dtype=np.uint8)
    for size in (0, 1, 32 * PIECE):
        assert sampled_hash(data[:size]) == hashlib.sha256(data[:size].tobytes()).hexdigest()


def test_of_what_is_large_32_pieces_are_read_from_the_first_byte_to_the_last(rng):
    data = rng.integers(0, 256, size=63 * PIECE, dtype=np.uint8)  # every other piece
    pieces = b"".join(data[2 * piece * PIECE : (2 * piece + 1) * PIECE].tobytes() for piece in range(32))
    assert sampled_hash(data) == hashlib.sha256(pieces).hexdigest()


@given(count=st.integers(0, 1 << 45), most=st.integers(1, 200))
def test_numbers_spread_evenly_are_as_many_as_wanted_and_rise_to_the_last(count, most):
    numbers = spread_evenly(count, most).tolist()
    assert len(numbers) == min(count, most)
    assert numbers == sorted(set(numbers))
    assert numbers[:1] == [0] * bool(count)
    assert most == 1 or numbers[-1:] == [count - 1] * bool(count)
