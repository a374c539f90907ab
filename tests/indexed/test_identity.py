"""What tells the data of a pair from other data."""

from __future__ import annotations

import os
import pickle

import pytest
from tests.support import write_corpus

from tokenloom.indexed import identity
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.identity import dataset_identity

LONG_AGO = (1, 1)


@pytest.fixture
def prefix(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 9], [4, 5, 6]])
    for name in (f"{prefix}.bin", f"{prefix}.idx"):
        os.utime(name, ns=LONG_AGO)
    return prefix


@pytest.fixture
def hashed(monkeypatch):
    """The sources of which pieces were read."""
    sources = []
    real = identity.sampled_hash_of
    monkeypatch.setattr(identity, "sampled_hash_of", lambda source: sources.append(source) or real(source))
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
