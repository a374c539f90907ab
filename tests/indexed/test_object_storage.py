import json
import os
import pickle
import warnings

import numpy as np
import pytest
from tests.indexed.origins import add_hashes, add_origins, hashes_beside, origins_beside
from tests.object_store.proxy import Faults
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY
from tests.support import equal_samples, make_dataset, random_documents, write_corpus

from tokenloom import BlockShuffle, IndexedDataset, IndexedDatasetBuilder, build_dataloader, parse_blend
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, ReplacedObjectError
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets
from tokenloom.storage.resolve import objects_below


@pytest.fixture
def local(tmp_path, rng):
    documents = random_documents(rng, count=30, longest=500, vocab_size=1000)
    documents[3] = rng.integers(0, 1000, size=rng.integers(1, 501))
    return write_corpus(tmp_path / "local", documents)


@pytest.fixture
def remote(bucket, local):
    return bucket.put_pair(local, "data/corpus")


def test_sequences_are_those_of_the_local_pair(local, remote):
    here, there = IndexedDataset(local), IndexedDataset(remote)
    assert (len(there), there.num_documents, there.dtype) == (len(here), here.num_documents, here.dtype)
    assert [there[row].tolist() for row in range(len(there))] == [here[row].tolist() for row in range(len(here))]
    assert [part.tolist() for part in there[3:9]] == [part.tolist() for part in here[3:9]]
    rows = np.array([5, 1, 5, 2])
    spans = rows, rows * 0, here.sequence_lengths[rows].astype(np.int64)
    assert there.gather(*spans).tolist() == here.gather(*spans).tolist()
    there.will_need(*spans)
    assert there.gather(*spans).tolist() == here.gather(*spans).tolist()
    assert pickle.loads(pickle.dumps(there))[4].tolist() == here[4].tolist()
    assert there.statistics() == here.statistics()
    assert (there.remote_paths, here.remote_paths) == ([f"{remote}.bin"], [])


@pytest.mark.slow
def test_both_files_of_a_pair_are_asked_for_in_one_round_trip(bucket, remote):
    bucket.proxy.faults = Faults(until_at_once=2)
    bucket.proxy.counts.clear()
    assert len(IndexedDataset(remote)) == 30
    assert (bucket.proxy.counts["HEAD"], bucket.proxy.counts["GET"]) == (2, 1)
    IndexedDataset(remote)
    assert (bucket.proxy.counts["HEAD"], bucket.proxy.counts["GET"]) == (4, 1)  # its index is here by now


def test_a_pickled_pair_stays_with_its_version(bucket, local, remote):
    dataset = IndexedDataset(remote)
    pickled = pickle.dumps(dataset)
    bucket.put("data/corpus.bin", b"\1" * os.path.getsize(f"{local}.bin"))
    with pytest.raises(ReplacedObjectError):
        pickle.loads(pickled)[3:9]
    assert (IndexedDataset(remote)[3:9][0] == 257).all()


def test_what_is_missing_is_named(bucket, local, remote):
    with pytest.raises(DatasetNotFoundError) as info:
        IndexedDataset(bucket.url("data/corp"))
    missing = [f"`{bucket.url('data/corp')}{suffix}`" for suffix in (".idx", ".bin")]
    assert str(info.value) == f"no file {' and '.join(missing)}\nhint: did you mean `{remote}`?"
    bucket.boto3.delete_object(Bucket=bucket.name, Key="data/corpus.idx")
    with pytest.raises(DatasetNotFoundError, match="the pair is incomplete"):
        IndexedDataset(remote)
    assert not IndexedDataset.exists(remote)
    with pytest.raises(ConfigError, match="the key must not have empty"):
        IndexedDataset("s3://b/../../x")
    bucket.put("data/corpus.idx", b"short")
    with pytest.raises(DatasetFormatError, match="expected a header of 34 bytes, found a file of 5 bytes"):
        IndexedDataset(remote)


def test_a_pair_is_built_uploaded_and_replaced(bucket, local):
    documents = [[1, 2, 3], [4], [5, 6]]
    for _ in range(2):
        with IndexedDatasetBuilder(bucket.url("new.bin"), dtype=np.uint16) as builder:
            for document in documents:
                builder.add_document(document, [len(document)])
            builder.finalize(bucket.url("new.idx"))
        assert [row.tolist() for row in IndexedDataset(bucket.url("new"))[:]] == documents
        documents.append([7, 8])
    with IndexedDatasetBuilder(bucket.url("given-up.bin")) as builder:
        builder.add_document([1], [1])
    assert bucket.keys() == ["new.bin", "new.idx"]


@pytest.mark.slow
def test_pairs_here_and_there_are_merged_here_or_there(bucket, local, remote, tmp_path):
    merged = merge_datasets([local, remote], bucket.url("merged"))
    expected = merge_datasets([local, local], str(tmp_path / "expected"))
    assert bucket.get("merged.bin") == (tmp_path / "expected.bin").read_bytes()
    assert bucket.get("merged.idx") == (tmp_path / "expected.idx").read_bytes()
    assert len(merged) == len(expected)
    with pytest.raises(ConfigError, match="is also an input"):
        merge_datasets([remote], remote)


@pytest.mark.slow
def test_blends_name_pairs_folders_and_globs(bucket, local, remote):
    bucket.put_pair(local, "data/web")
    bucket.put_pair(local, "top")
    web = bucket.url("data/web")
    assert parse_blend(["3", remote, "1", web]) == {"blend": ([remote, web], [3.0, 1.0])}
    assert parse_blend([bucket.url("data/")]) == {"blend": ([remote, web], None)}
    assert parse_blend(["2", bucket.url("data/*"), "1", local])["blend"] == ([remote, web, local], [1.0, 1.0, 1.0])
    assert parse_blend([f"s3://{bucket.name}/t*"])["blend"] == ([bucket.url("top")], None)
    with pytest.raises(DatasetNotFoundError, match="matches no pair"):
        parse_blend([bucket.url("data/x*")])
    with pytest.raises(DatasetNotFoundError, match=r"'s3://.*/data/none' in the blend: no file"):
        parse_blend([bucket.url("data/none")])


@pytest.mark.slow
def test_profiles_of_multi_storage_client(bucket, local, remote, tmp_path, monkeypatch):
    profile = f"profile-{bucket.name}"  # the library keeps what it knows of a name
    options = {"base_path": bucket.name, "endpoint_url": bucket.proxy.endpoint, "region_name": REGION}
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    config = {"storage_provider": {"type": "s3", "options": options}}
    config["credentials_provider"] = {"type": "S3Credentials", "options": keys}
    path = tmp_path / "msc.json"
    path.write_text(json.dumps({"profiles": {profile: config}}))
    monkeypatch.setenv("MSC_CONFIG", str(path))
    address = f"msc://{profile}/data/corpus"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports
        dataset = IndexedDataset(address)
        assert [row.tolist() for row in dataset[:]] == [row.tolist() for row in IndexedDataset(local)[:]]
        merge_datasets([address], f"msc://{profile}/copy")
        assert bucket.get("copy.bin") == bucket.get("data/corpus.bin")
        assert parse_blend([f"msc://{profile}/data/"])["blend"] == ([address], None)


@pytest.mark.slow
def test_origins_and_hashes_come_from_a_bucket_and_go_there(bucket, tmp_path, local):
    add_origins(local)
    hashes = add_hashes(local)
    remote = bucket.put_pair(local, "data/with")
    bare = bucket.put_pair(write_corpus(tmp_path / "b", [[1, 2]]), "data/b")
    assert origins_beside(remote) == origins_beside(local)
    assert hashes_beside(remote) == hashes
    merged = merge_datasets([remote, bare], bucket.url("out/all"))
    assert origins_beside(merged.path_prefix) == [*origins_beside(local), None]
    assert hashes_beside(merged.path_prefix) is None
    suffixes = ("bin", "columns.json", "idx", "origins.npy")
    assert sorted(objects_below(bucket.url("out"))) == [f"{merged.path_prefix}.{suffix}" for suffix in suffixes]
    assert hashes_beside(merge_datasets([remote, remote], f"{tmp_path}/twice").path_prefix) == hashes * 2
    merge_datasets([bare], bucket.url("out/all"), overwrite=True)
    assert sorted(objects_below(bucket.url("out"))) == [f"{merged.path_prefix}.{suffix}" for suffix in ("bin", "idx")]


@pytest.fixture
def pairs(tmp_path, rng):
    drawn = [random_documents(rng, count=30, longest=500, vocab_size=1000) for _ in range(3)]
    return [write_corpus(tmp_path / f"{number}", documents) for number, documents in enumerate(drawn)]


@pytest.fixture
def remotes(bucket, pairs):
    return [bucket.put_pair(pair, f"data/{number}") for number, pair in enumerate(pairs)]


@pytest.fixture
def merged(tmp_path, pairs):
    return merge_datasets(pairs, str(tmp_path / "merged"))


def assert_equal(dataset, expected):
    assert [row.tolist() for row in dataset[:]] == [row.tolist() for row in expected[:]]
    rows = np.array([5, 61, 5, 88, 30, 29])
    spans = rows, rows * 0, expected.sequence_lengths[rows].astype(np.int64)
    assert dataset.gather(*spans).tolist() == expected.gather(*spans).tolist()
    for block_bytes in (None, 1000):
        dataset.will_need(*spans, block_bytes=block_bytes)
        assert dataset.gather(*spans).tolist() == expected.gather(*spans).tolist()


@pytest.mark.slow
def test_a_catalogue_in_a_store_names_pairs_beside_it(bucket, remotes, merged):
    dataset = build_catalogue(remotes, bucket.url("data/all"))
    assert b'"prefix": "0"' in bucket.get("data/all.catalogue")
    assert b'"etag": ' in bucket.get("data/all.catalogue")
    assert dataset.remote_paths == [f"{prefix}.bin" for prefix in remotes]
    assert_equal(dataset, merged)
    assert_equal(pickle.loads(pickle.dumps(dataset)), merged)
    assert IndexedDataset.exists(bucket.url("data/all"))
    merge_datasets([dataset.path_prefix], bucket.url("again"))
    with open(f"{merged.path_prefix}.bin", "rb") as tokens:
        assert bucket.get("again.bin") == tokens.read()


@pytest.mark.slow
@pytest.mark.parametrize("shuffled_by_block", [False, True])
def test_samples_are_those_of_the_local_merge(bucket, tmp_path, remotes, merged, shuffled_by_block):
    prefix = build_catalogue(remotes, bucket.url("data/all")).path_prefix
    options = {"sequence_length": 64, "path_to_cache": str(tmp_path / "cache")}
    if shuffled_by_block:
        options["block_shuffle"] = BlockShuffle(block_bytes=2000, window_blocks=3)
    found = make_dataset(prefix, num_samples=60, **options)
    expected = make_dataset(merged.path_prefix, num_samples=60, **options)
    positions = [[0, 5, 3, 17], [1, 2, 9, 40]]
    if not shuffled_by_block:  # blocks end where pairs end
        assert all(equal_samples(found[number], expected[number]) for number in (0, 7, 33))
    batches = list(build_dataloader(found, positions))
    for batch, numbers in zip(batches, positions, strict=True):
        filled = found.batch(numbers)
        assert {name: batch[name].tolist() for name in batch} == {name: filled[name].tolist() for name in filled}
