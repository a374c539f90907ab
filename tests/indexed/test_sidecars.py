"""Files beside a pair: named when they are missing or changed, and gone with the pair that they were of."""

from __future__ import annotations

import os

import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset, merge_datasets
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.manifest.contents import PairFacts
from tokenloom.indexed.manifest.file import read_manifest, read_manifest_head
from tokenloom.indexed.sidecars import NAMES, check_sidecars, sidecar_paths
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.outputs import PendingDataset, dataset_paths


def flip_last_byte(path: str) -> None:
    with open(path, "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        value = stream.read(1)[0]
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([value ^ 1]))


@pytest.fixture
def prefix(tmp_path):
    """A pair with origins, hashes and a manifest that tells of both."""
    prefix = write_recorded(tmp_path / "pair", [[[1, 2]], [[3]]])
    add_origins(prefix)
    add_hashes(prefix)
    return prefix


def test_each_is_known_everywhere(tmp_path):
    members = PairFacts.__dataclass_fields__
    pending = PendingDataset.__dataclass_fields__
    assert all(name in members and name in pending for name in NAMES)
    assert set(sidecar_paths("a")) <= set(dataset_paths("a"))
    assert [path.removeprefix("a.") for path in sidecar_paths("a")] == list(NAMES)


def test_the_manifest_tells_of_them(prefix):
    facts = read_manifest(prefix).pair
    assert (facts.origins.num_bytes, facts.hashes.num_bytes) == tuple(
        os.path.getsize(f"{prefix}.{name}") for name in ("origins", "hashes")
    )
    assert read_manifest_head(prefix).index_start_crc32 == facts.index_start_crc32
    assert verify_dataset(prefix).ok


@pytest.mark.parametrize("name", ["origins", "hashes"])
def test_what_is_missing_is_named(tmp_path, prefix, name):
    num_bytes = os.path.getsize(f"{prefix}.{name}")
    os.unlink(f"{prefix}.{name}")
    expected = f"`{prefix}.{name}`: expected {num_bytes} bytes of {name}, as the manifest says, found no such file"
    assert verify_dataset(prefix).problems == (expected,)
    check_sidecars(IndexedDataset(prefix))  # nobody who trains or joins needs them
    merge_datasets([prefix], f"{tmp_path}/merged")
    assert not os.path.exists(f"{tmp_path}/merged.{name}")


@pytest.mark.parametrize("name", ["origins", "hashes"])
def test_what_was_changed_is_named(tmp_path, prefix, name):
    flip_last_byte(f"{prefix}.{name}")
    problems = verify_dataset(prefix).problems
    assert [problem.startswith(f"`{prefix}.{name}`: expected") for problem in problems] == [True, True]
    assert "as the manifest says" in problems[1]
    with pytest.raises(DatasetFormatError, match=rf"pair\.{name}`: expected"):
        merge_datasets([prefix], f"{tmp_path}/merged")


@pytest.mark.parametrize("name", ["origins", "hashes"])
def test_what_is_of_another_pair_is_named(tmp_path, prefix, name):
    other = write_recorded(tmp_path / "other", [[[1, 2, 3]], [[3]]])
    os.rename(f"{prefix}.{name}", f"{other}.{name}")
    assert "was written for another pair" in verify_dataset(other).problems[0]


def test_a_pair_that_is_replaced_loses_them(prefix):
    write_pair(prefix, [[[1]]])
    assert [path for path in sidecar_paths(prefix) if os.path.exists(path)] == []
