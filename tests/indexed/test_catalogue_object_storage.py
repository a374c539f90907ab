"""Catalogues of pairs in object storage, and in it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.support import equal_samples, make_config, make_dataset, random_documents, write_corpus

from tokenloom import BlockShuffle, GPTDataset, IndexedDataset, Split, build_catalogue, build_dataloader, merge_datasets
from tokenloom.errors import ConfigError, ReplacedObjectError
from tokenloom.indexed.identity import dataset_identity


@pytest.fixture
def pairs(tmp_path, rng):
    return [
        write_corpus(tmp_path / f"{number}", random_documents(rng, count=30, longest=500, vocab_size=1000))
        for number in range(3)
    ]


@pytest.fixture
def remote(bucket, pairs):
    return [bucket.put_pair(pair, f"data/{number}") for number, pair in enumerate(pairs)]


@pytest.fixture
def merged(tmp_path, pairs):
    return merge_datasets(pairs, str(tmp_path / "merged"))


def assert_equal(dataset, expected):
    assert [row.tolist() for row in dataset[:]] == [row.tolist() for row in expected[:]]
    rows = np.array([5, 61, 5, 88, 30, 29])
    lengths = expected.sequence_lengths[rows].astype(np.int64)
    assert dataset.gather(rows, rows * 0, lengths).tolist() == expected.gather(rows, rows * 0, lengths).tolist()
    for block_bytes in (None, 1000):
        dataset.will_need(rows, rows * 0, lengths, block_bytes=block_bytes)
        assert dataset.gather(rows, rows * 0, lengths).tolist() == expected.gather(rows, rows * 0, lengths).tolist()


def test_a_catalogue_in_a_store_names_pairs_beside_it(bucket, remote, merged):
    dataset = build_catalogue(remote, bucket.url("data/all"))
    assert b'"prefix": "0"' in bucket.get("data/all.catalogue")
    assert b'"etag": ' in bucket.get("data/all.catalogue")
    assert dataset.remote_paths == [f"{prefix}.bin" for prefix in remote]
    assert_equal(dataset, merged)
    assert_equal(pickle.loads(pickle.dumps(dataset)), merged)
    assert IndexedDataset.exists(bucket.url("data/all"))
    merge_datasets([dataset.path_prefix], bucket.url("again"))
    with open(f"{merged.path_prefix}.bin", "rb") as tokens:
        assert bucket.get("again.bin") == tokens.read()


def test_opening_asks_for_no_pair(bucket, remote):
    prefix = build_catalogue(remote, bucket.url("data/all")).path_prefix
    bucket.proxy.counts.clear()
    dataset = IndexedDataset(prefix)
    dataset_identity(dataset)
    assert sum(bucket.proxy.counts[method] for method in ("GET", "HEAD")) <= 4  # the catalogue, and looking for `.bin`


def test_pairs_here_and_there_are_one(tmp_path, pairs, remote, merged):
    mixed = [remote[0], pairs[1], remote[2]]
    dataset = build_catalogue(mixed, str(tmp_path / "all"))
    assert dataset.bin_reader.mapped is None
    assert dataset.remote_paths == [f"{remote[0]}.bin", f"{remote[2]}.bin"]
    assert_equal(dataset, merged)


def test_local_pairs_have_no_place_in_a_store(bucket, pairs, remote):
    with pytest.raises(ConfigError, match="would name the local pair") as caught:
        build_catalogue([*remote, pairs[0]], bucket.url("data/all"))
    assert caught.value.hint == "write it beside the pairs, or store the pairs first"
    keys = bucket.keys()
    assert len(keys) == 6


def test_an_object_that_was_replaced_is_an_error(bucket, tmp_path, remote):
    prefix = build_catalogue(remote, str(tmp_path / "all")).path_prefix
    before = dataset_identity(IndexedDataset(prefix))
    bucket.put("data/1.bin", bytes(len(bucket.get("data/1.bin"))))
    with pytest.raises(ReplacedObjectError):
        IndexedDataset(prefix)[30:60]
    after = dataset_identity(build_catalogue(remote, str(tmp_path / "all"), overwrite=True))
    assert {name for name in before if before[name] != after[name]} == {"pairs"}


@pytest.mark.parametrize("shuffled_by_block", [False, True])
def test_samples_are_those_of_the_local_merge(bucket, tmp_path, remote, merged, shuffled_by_block):
    prefix = build_catalogue(remote, bucket.url("data/all")).path_prefix
    options = {"sequence_length": 64, "path_to_cache": str(tmp_path / "cache")}
    if shuffled_by_block:
        options["block_shuffle"] = BlockShuffle(block_bytes=2000, window_blocks=3)
    found = GPTDataset(
        IndexedDataset(prefix), prefix, np.arange(90, dtype=np.int32), 60, Split.train, make_config(prefix, **options)
    )
    expected = make_dataset(merged.path_prefix, num_samples=60, **options)
    positions = [[0, 5, 3, 17], [1, 2, 9, 40]]
    if not shuffled_by_block:  # blocks end where pairs end
        assert all(equal_samples(found[number], expected[number]) for number in (0, 7, 33))
    batches = list(build_dataloader(found, positions))
    for batch, numbers in zip(batches, positions, strict=True):
        filled = found.batch(numbers)
        assert {name: batch[name].tolist() for name in batch} == {name: filled[name].tolist() for name in filled}
