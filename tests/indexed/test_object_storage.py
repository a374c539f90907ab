"""Pairs in object storage: wherever a prefix is accepted, an address is."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import threading
import warnings
from functools import partial

import numpy as np
import pytest
from tests.indexed.origins import add_hashes, add_origins, hashes_beside, origins_beside
from tests.object_store.fixtures import Bucket
from tests.object_store.proxy import Faults
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY
from tests.support import random_documents, write_corpus

from tokenloom import (
    ConfigError,
    DatasetFormatError,
    DatasetNotFoundError,
    IndexedDataset,
    IndexedDatasetBuilder,
    ReplacedObjectError,
    merge_datasets,
    parse_blend,
    plan_build,
    sequence_counts,
    verify_dataset,
)
from tokenloom.cli import main
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.indexed.identity import dataset_identity
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import objects_below


@pytest.fixture
def local(tmp_path, rng):
    """A pair whose document 3, which tests read, is no empty one."""
    documents = random_documents(rng, count=30, longest=500, vocab_size=1000)
    documents[3] = rng.integers(0, 1000, size=rng.integers(1, 501))
    return write_corpus(tmp_path / "local", documents)


@pytest.fixture
def remote(bucket: Bucket, local):
    return bucket.put_pair(local, "data/corpus")


def test_sequences_are_those_of_the_local_pair(local, remote):
    here, there = IndexedDataset(local), IndexedDataset(remote)
    assert (len(there), there.num_documents, there.dtype) == (len(here), here.num_documents, here.dtype)
    assert [there[row].tolist() for row in range(len(there))] == [here[row].tolist() for row in range(len(here))]
    assert [part.tolist() for part in there[3:9]] == [part.tolist() for part in here[3:9]]
    rows, starts = np.array([5, 1, 5, 2]), np.array([0, 0, 0, 0])
    lengths = here.sequence_lengths[rows].astype(np.int64)
    assert there.gather(rows, starts, lengths).tolist() == here.gather(rows, starts, lengths).tolist()
    there.will_need(rows, starts, lengths)
    assert there.gather(rows, starts, lengths).tolist() == here.gather(rows, starts, lengths).tolist()
    assert pickle.loads(pickle.dumps(there))[4].tolist() == here[4].tolist()
    assert there.statistics() == here.statistics()
    assert (there.remote_paths, here.remote_paths) == ([f"{remote}.bin"], [])


def test_both_files_of_a_pair_are_asked_for_in_one_round_trip(bucket, remote):
    bucket.proxy.faults = Faults(until_at_once=2)
    bucket.proxy.counts.clear()
    assert len(IndexedDataset(remote)) == 30
    assert (bucket.proxy.counts["HEAD"], bucket.proxy.counts["GET"]) == (2, 1)
    IndexedDataset(remote)
    assert (bucket.proxy.counts["HEAD"], bucket.proxy.counts["GET"]) == (4, 1)  # its index is here by now


def test_blocks_hold_whole_sequences(bucket, tmp_path):
    lengths = [3, 5, 0, 9, 40, 2, 2, 2]
    prefix = write_corpus(tmp_path / "some", [[row] * length for row, length in enumerate(lengths)])
    dataset = IndexedDataset(bucket.put_pair(prefix, "some"))
    assert dataset.block_starts(20).tolist() == [0, 34, 114, 122]
    assert dataset.block_numbers(np.arange(8), 20).tolist() == [0, 0, 0, 0, 1, 2, 2, 3]
    rows, starts = np.array([3, 0, 4, 7]), np.zeros(4, dtype=np.int64)
    bucket.proxy.counts.clear()
    dataset.will_need(rows, starts, np.array([9, 3, 40, 2]), block_bytes=20)
    assert dataset.gather(rows, starts, np.array([9, 3, 40, 2])).tolist() == [3] * 9 + [0] * 3 + [4] * 40 + [7] * 2
    assert (bucket.proxy.counts["GET"], bucket.proxy.counts["body_bytes"]) == (3, 118)


def test_a_pickled_pair_stays_with_its_version(bucket, local, remote):
    dataset = IndexedDataset(remote)
    pickled = pickle.dumps(dataset)
    bucket.put("data/corpus.bin", b"\1" * os.path.getsize(f"{local}.bin"))
    with pytest.raises(ReplacedObjectError):
        pickle.loads(pickled)[3:9]
    assert (IndexedDataset(remote)[3:9][0] == 257).all()


def test_identities_tell_versions_apart(bucket, local, remote):
    before = dataset_identity(IndexedDataset(remote))
    assert dataset_identity(IndexedDataset(remote)) == before
    json.dumps(before)
    bucket.put("data/corpus.bin", b"\1" * os.path.getsize(f"{local}.bin"))
    after = dataset_identity(IndexedDataset(remote))
    assert {name for name in before if before[name] != after[name]} == {"bin_etag"}


def test_what_is_missing_is_named(bucket, local, remote):
    with pytest.raises(DatasetNotFoundError) as info:
        IndexedDataset(bucket.url("data/corp"))
    missing = [f"`{bucket.url('data/corp')}{suffix}`" for suffix in (".idx", ".bin")]
    assert str(info.value) == f"no file {' and '.join(missing)}\nhint: did you mean `{remote}`?"
    bucket.boto3.delete_object(Bucket=bucket.name, Key="data/corpus.idx")
    with pytest.raises(DatasetNotFoundError, match="the pair is incomplete"):
        IndexedDataset(remote)
    assert not IndexedDataset.exists(remote)
    with pytest.raises(ConfigError, match="expected a key without"):
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


def test_pairs_here_and_there_are_merged_here_or_there(bucket, local, remote, tmp_path):
    merged = merge_datasets([local, remote], bucket.url("merged"))
    expected = merge_datasets([local, local], str(tmp_path / "expected"))
    assert bucket.get("merged.bin") == (tmp_path / "expected.bin").read_bytes()
    assert bucket.get("merged.idx") == (tmp_path / "expected.idx").read_bytes()
    assert len(merged) == len(expected)
    with pytest.raises(ConfigError, match="is also an input"):
        merge_datasets([remote], remote)


def test_counts_and_complete_checks(local, remote):
    assert sequence_counts([remote])[remote] == sequence_counts([local])[local]
    report = verify_dataset(remote, vocab_size=1000)
    assert report.ok
    assert report == verify_dataset(local, vocab_size=1000)


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


def test_plans_are_those_of_local_data(local, remote):
    def plan(prefix):
        config = BlendedMegatronDatasetConfig(
            random_seed=1, sequence_length=16, blend=([prefix], None), split="90,10,0"
        )
        return plan_build(config, [100, None, None])

    here, there = plan(local), plan(remote)
    assert [split.num_tokens for split in filter(None, there.splits)] == [
        split.num_tokens for split in filter(None, here.splits)
    ]


@pytest.mark.parametrize("command", [["info"], ["verify"], ["show", "--document", "3", "--width", "0"]])
def test_commands_print_what_they_print_of_local_data(local, remote, capsys, command):
    name, *options = command
    printed = []
    for prefix in (local, remote):
        assert main([name, prefix, *options]) == 0
        lines = capsys.readouterr().out.replace(prefix, "PREFIX").splitlines()
        printed.append([" ".join(line.split()) for line in lines if any(char.isalnum() for char in line)])
    assert printed[0] == printed[1]


def test_plain_http_serves_public_data(bucket, local):
    handler = partial(_RangeHandler, {f"/x{suffix}": open_bytes(local + suffix) for suffix in (".bin", ".idx")})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            dataset = IndexedDataset(f"http://127.0.0.1:{server.server_port}/x")
            assert [row.tolist() for row in dataset[3:9]] == [row.tolist() for row in IndexedDataset(local)[3:9]]
        finally:
            server.shutdown()
            thread.join()


def test_profiles_of_multi_storage_client(bucket, local, remote, tmp_path, monkeypatch):
    profile = f"profile-{bucket.name}"  # the library keeps what it knows of a name
    config = {
        "profiles": {
            profile: {
                "storage_provider": {
                    "type": "s3",
                    "options": {
                        "base_path": bucket.name,
                        "endpoint_url": bucket.proxy.endpoint,
                        "region_name": REGION,
                    },
                },
                "credentials_provider": {
                    "type": "S3Credentials",
                    "options": {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY},
                },
            }
        }
    }
    path = tmp_path / "msc.json"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("MSC_CONFIG", str(path))
    address = f"msc://{profile}/data/corpus"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports
        dataset = IndexedDataset(address)
        assert [row.tolist() for row in dataset[:]] == [row.tolist() for row in IndexedDataset(local)[:]]
        with pytest.raises(DatasetNotFoundError):
            IndexedDataset(f"msc://{profile}/data/none")
        merge_datasets([address], f"msc://{profile}/copy")
        assert bucket.get("copy.bin") == bucket.get("data/corpus.bin")
        assert parse_blend([f"msc://{profile}/data/"])["blend"] == ([address], None)
        assert {path: RemoteFile(path).version for path in (f"{address}.bin", f"{address}.idx")} == objects_below(
            f"msc://{profile}/data/"
        )
        bucket.put("data/corpus.bin", b"\1" * dataset.bin_reader.num_bytes)
        with pytest.raises(ReplacedObjectError):
            dataset[3:9]


def open_bytes(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


class _RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves bytes by range, with an etag, as web servers do."""

    protocol_version = "HTTP/1.1"

    def __init__(self, files: dict[str, bytes], *arguments) -> None:
        self._files = files
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if (data := self._files.get(self.path)) is None:
            self.send_error(404)
            return
        start, stop, total = 0, len(data), len(data)
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1, total)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        self.send_header("ETag", f'"{total}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if with_body:
            self.wfile.write(data[start:stop])

    def log_message(self, *_: object) -> None:
        pass


def test_origins_and_hashes_come_from_a_bucket_and_go_there(bucket: Bucket, tmp_path, local):
    add_origins(local)
    hashes = add_hashes(local)
    remote, bare = (
        bucket.put_pair(local, "data/with"),
        bucket.put_pair(write_corpus(tmp_path / "b", [[1, 2]]), "data/b"),
    )
    assert origins_beside(remote) == origins_beside(local)
    assert hashes_beside(remote) == hashes
    merged = merge_datasets([remote, bare], bucket.url("out/all"))
    assert origins_beside(merged.path_prefix) == [*origins_beside(local), None]
    assert hashes_beside(merged.path_prefix) is None
    assert sorted(objects_below(bucket.url("out"))) == [
        f"{merged.path_prefix}.{suffix}" for suffix in ("bin", "idx", "origins")
    ]
    assert hashes_beside(merge_datasets([remote, remote], f"{tmp_path}/twice").path_prefix) == hashes * 2
    merge_datasets([bare], bucket.url("out/all"), overwrite=True)
    assert sorted(objects_below(bucket.url("out"))) == [f"{merged.path_prefix}.{suffix}" for suffix in ("bin", "idx")]
