"""Hashes of the texts beside a pair: literal bytes, and files that do not belong."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.indexed.origins import start_of
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.sidecars import read_document_hashes, write_document_hashes
from tokenloom.indexed.verify import verify_dataset

HASHES = np.array([[1, 2], [3, 4], [5, 2**64 - 1]], dtype=np.uint64)


@pytest.fixture
def prefix(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]], [[2], [3]], []])
    file, checksum = write_document_hashes(prefix, [HASHES[:1], HASHES[1:]], index_start_crc32=start_of(prefix))
    file.publish()
    data = Path(f"{prefix}.hashes").read_bytes()
    assert (checksum.num_bytes, checksum.crc32) == (len(data), zlib.crc32(data))
    return prefix


def test_the_bytes_are_those_of_the_format(prefix):
    hashes = struct.pack("<6Q", 1, 2, 3, 4, 5, 2**64 - 1)
    fields = struct.pack("<IIQQQ16x", start_of(prefix), zlib.crc32(hashes), 3, 3, 2)
    own = zlib.crc32(b"TLHASHES" + struct.pack("<II", 2, 0) + fields + b"{}")
    expected = b"TLHASHES" + struct.pack("<II", 2, own) + fields + hashes + b"{}"
    assert Path(f"{prefix}.hashes").read_bytes() == expected


def test_hashes_are_read_back(prefix, tmp_path):
    found = read_document_hashes(prefix)
    assert found is not None
    assert np.array_equal(found, HASHES)
    assert verify_dataset(prefix).ok
    assert read_document_hashes(write_pair(tmp_path / "other", [[[1]]])) is None


def test_hashes_of_another_pair_are_refused(prefix, tmp_path):
    data = Path(f"{prefix}.hashes").read_bytes()
    for name, corpus, message in (
        ("a", [[[1]]], "the 1 documents of the pair, found 3"),
        ("b", [[[1, 2]], [[3]], []], "another pair"),
    ):
        other = write_pair(tmp_path / name, corpus)
        Path(f"{other}.hashes").write_bytes(data)
        with pytest.raises(DatasetFormatError, match=message):
            read_document_hashes(other)


def test_a_changed_hash_is_found_by_reading_all(prefix):
    path = Path(f"{prefix}.hashes")
    path.write_bytes(path.read_bytes()[:-3] + b"\0{}")
    assert verify_dataset(prefix).problems[0].startswith(f"`{path}`: expected columns with CRC-32 ")
    assert read_document_hashes(prefix) is not None
    with pytest.raises(DatasetFormatError, match="expected columns with CRC-32"):
        read_document_hashes(prefix, is_checked=True)
