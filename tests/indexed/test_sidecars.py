"""Files beside a pair: named when they are missing or changed, and gone with the pair that they were of."""

from __future__ import annotations

import os

import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset, merge_datasets
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.verify import check_sidecars, verify_dataset


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


def test_a_pair_that_is_replaced_loses_them(prefix):
    write_pair(prefix, [[[1]]])
    assert sorted(os.listdir(os.path.dirname(prefix))) == ["pair.bin", "pair.idx"]
