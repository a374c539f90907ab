"""Files beside a pair: named when they are missing or changed, and gone with the pair that they were of."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset, merge_datasets
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.roles import read_roles
from tokenloom.indexed.sidecars import read_document_hashes
from tokenloom.indexed.verify import check_sidecars, verify_dataset


def flip_first_byte(path: str) -> None:
    """Changes the first byte of the columns."""
    with open(path, "r+b") as stream:
        stream.seek(64)
        value = stream.read(1)[0]
        stream.seek(64)
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
    flip_first_byte(f"{prefix}.{name}")
    problems = verify_dataset(prefix).problems
    assert [problem.startswith(f"`{prefix}.{name}`: expected") for problem in problems] == [True, True]
    assert "as the manifest says" in problems[1]
    with pytest.raises(DatasetFormatError, match=rf"pair\.{name}`: expected"):
        merge_datasets([prefix], f"{tmp_path}/merged")


READERS = {
    "roles": lambda prefix: read_roles(IndexedDataset(prefix)),
    "origins": read_origins,
    "hashes": read_document_hashes,
}


def put(kind: str, offset: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + struct.pack(kind, value) + data[offset + struct.calcsize(kind) :]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:20], "expected a header of 64 bytes, found a file of 20 bytes"),
        (lambda data: b"X" + data[1:], "expected b'TL.*' and version 2, found b'XL"),
        (put("<I", 8, 1), ".* and version 2, found .* and version 1"),
        (put("<I", 16, 1), "expected CRC-32 .* of header and table"),
        (put("<B", -2, 7), "expected CRC-32 .* of header and table"),
        (put("<Q", 24, 1 << 60), "expected counts that fit a file of|expected CRC-32 .* of header and table"),
        (put("<Q", 32, 1 << 60), "expected counts that fit a file of|expected CRC-32 .* of header and table"),
        (put("<Q", 40, 1 << 60), "expected counts that fit a file of"),
        (lambda data: data[:-1], "expected counts that fit a file of"),
        (lambda data: data + b"\0", "expected counts that fit a file of"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, change, message):
    prefix = write_conversations(tmp_path / "chat", [conversation((ANSWER, [1, 2])), conversation((PROMPT, [3]))])
    add_origins(prefix)
    add_hashes(prefix)
    path = Path(f"{prefix}.{name}")
    assert READERS[name](prefix) is not None
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DatasetFormatError, match=rf"chat\.{name}`: ({message})"):
        READERS[name](prefix)


def test_a_pair_that_is_replaced_loses_them(prefix):
    write_pair(prefix, [[[1]]])
    assert sorted(os.listdir(os.path.dirname(prefix))) == ["pair.bin", "pair.idx"]
