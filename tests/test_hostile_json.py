"""JSON files of every kind that say too much, too deeply, or nothing of use: each is a named error, or no entry."""

import json
import logging

import pytest

from tests.indexed.pairs import FIRST, SECOND, write_pair
from tests.support import make_dataset
from tokenloom import IndexedDataset, build_catalogue
from tokenloom.blending.spec import parse_blend
from tokenloom.errors import TokenloomError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.preprocess.shard import ShardReport
from tokenloom.tokenizers.tiktoken_ranks import read_description

HOSTILE = {
    "deep": "[" * 900 + "]" * 900,
    "deep objects": '{"a":' * 80 + "1" + "}" * 80,
    "digits": "9" * 5000,
    "nothing": "",
    "no text": "\0\0\0",
    "array": "[]",
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_bytes", -(10**30)),
        ("num_bytes", 2**63),
        ("num_sequences", 10**30),
        ("num_sequences", None),
        ("num_documents", 1.5),
        ("num_documents", "\0"),
        ("modified_ns", [[]]),
        ("sample", 10**30),
        ("prefix", "\ud800"),
        ("prefix", None),
    ],
)
def test_a_member_of_a_catalogue_that_cannot_be_is_named(folder, name, value):
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
