"""JSON files of every kind that say too much, too deeply, or nothing of use: each is a named error, or no entry."""

from __future__ import annotations

import json
import logging

import pytest

from tests.indexed.pairs import FIRST, SECOND, write_pair
from tests.support import make_dataset
from tokenloom import IndexedDataset, build_catalogue
from tokenloom.blending.spec import parse_blend
from tokenloom.corpus.report import ShardReport
from tokenloom.errors import TokenloomError
from tokenloom.indexed.manifest.file import read_manifest
from tokenloom.tokenizers.tiktoken_ranks import read_description

HOSTILE = {
    "deep": "[" * 900 + "]" * 900,
    "deeper": "[" * 200_000,
    "deep objects": '{"a":' * 80 + "1" + "}" * 80,
    "digits": "9" * 5000,
    "huge": "1" + "0" * 30,
    "nothing": "",
    "no text": "\0\0\0",
    "array": "[]",
    "number": "1e999",
}


def catalogue(tmp_path, text):
    (tmp_path / "all.catalogue").write_text(text)
    return IndexedDataset(f"{tmp_path}/all")[0]


def read_all(tmp_path, text):
    catalogue(tmp_path, text)
    dataset = IndexedDataset(f"{tmp_path}/all")
    dataset.bin_reader.check()
    return dataset[:]


def report(tmp_path, text):
    return ShardReport.from_json(text.encode(), path="x.json")


def manifest(tmp_path, text):
    (tmp_path / "a.manifest.json").write_text(text)
    return read_manifest(f"{tmp_path}/a")


def blend(tmp_path, text):
    (tmp_path / "splits.json").write_text(text)
    return parse_blend(per_split=f"{tmp_path}/splits.json")


def ranks(tmp_path, text):
    (tmp_path / "x.tiktoken.json").write_text(text)
    return read_description(f"{tmp_path}/x.tiktoken", b"")


@pytest.fixture
def folder(tmp_path):
    prefixes = [write_pair(tmp_path / "a", FIRST), write_pair(tmp_path / "b", SECOND)]
    build_catalogue(prefixes, f"{tmp_path}/all")
    return tmp_path


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("read", [catalogue, report, manifest, blend, ranks])
def test_a_hostile_file_is_a_named_error(folder, read, text):
    with pytest.raises(TokenloomError, match="`"):
        read(folder, text)


@pytest.mark.parametrize("name", ["num_bytes", "num_sequences", "num_documents", "modified_ns", "sample", "prefix"])
@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63, None, [[]], "\0", "\ud800", 1.5])
def test_a_member_of_a_catalogue_that_cannot_be_is_named(folder, name, value):
    if (name in ("modified_ns", "sample") and value is None) or (name == "sample" and isinstance(value, str)):
        return  # nothing is known, or another: looked at where the time differs only
    content = json.loads((folder / "all.catalogue").read_text())
    content["parts"][1][name] = value
    with pytest.raises(TokenloomError, match=r"all\.catalogue|\.bin`"):
        read_all(folder, json.dumps(content))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_record_of_a_cache_counts_as_none(tmp_path, text, caplog):
    prefix = write_pair(tmp_path / "a", [[[1, 2, 3, 4, 5, 6, 7, 8, 9]]])
    expected = make_dataset(prefix, path_to_cache=f"{tmp_path}/cache").sample(0)["tokens"]
    (record,) = (tmp_path / "cache").glob("*identity.json")
    record.write_text(text)
    with caplog.at_level(logging.WARNING, logger="tokenloom"):
        found = make_dataset(prefix, path_to_cache=f"{tmp_path}/cache").sample(0)["tokens"]
    assert found.tolist() == expected.tolist()
    assert str(record) in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["num_documents", "num_tokens", "hashes_crc32", "slice_rows", "seconds", "key"])
@pytest.mark.parametrize("value", [10**30, -1, "x", [10**30], {}, [[]], True])
def test_a_member_of_a_report_that_cannot_be_is_named(name, value):
    good = ShardReport(
        key="k", slice_rows=(1, 2), num_documents=3, num_blank_lines=0, num_rejected=0, num_doubled=0,
        num_text_bytes=4, num_tokens=3, hashes_crc32=None, engine="x", engine_reason="y", seconds=1.0, boot_id="z",
    )  # fmt: skip
    assert ShardReport.from_json(good.to_json(), path="x.json") == good
    members = json.loads(good.to_json()) | {name: value}
    if (name, value) in (("key", "x"), ("seconds", -1), ("slice_rows", {})):
        return
    with pytest.raises(TokenloomError, match=r"`x\.json` is not the report of a shard"):
        ShardReport.from_json(json.dumps(members).encode(), path="x.json")
