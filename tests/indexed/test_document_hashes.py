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
from tokenloom.indexed.document_hashes import (
    hashes_path,
    read_document_hashes,
    write_document_hashes,
)
from tokenloom.indexed.verify import verify_dataset

HASHES = np.array([[1, 2], [3, 4], [5, 2**64 - 1]], dtype=np.uint64)


@pytest.fixture
def prefix(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]], [[2], [3]], []])
    file, checksum = write_document_hashes(prefix, [HASHES[:1], HASHES[1:]], index_start_crc32=start_of(prefix))
    file.publish()
    data = Path(hashes_path(prefix)).read_bytes()
    assert (checksum.num_bytes, checksum.crc32) == (len(data), zlib.crc32(data))
    return prefix


def test_the_bytes_are_those_of_the_format(prefix):
    hashes = struct.pack("<6Q", 1, 2, 3, 4, 5, 2**64 - 1)
    start = b"TLHASHES" + struct.pack("<IIQI", 1, start_of(prefix), 3, zlib.crc32(hashes))
    assert Path(hashes_path(prefix)).read_bytes() == start + struct.pack("<I", zlib.crc32(start)) + hashes


def test_hashes_are_read_back(prefix, tmp_path):
    found = read_document_hashes(prefix)
    assert found is not None
    assert np.array_equal(found, HASHES)
    assert verify_dataset(prefix).ok
    assert read_document_hashes(write_pair(tmp_path / "other", [[[1]]])) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:20], "expected a header of 32 bytes, found a file of 20 bytes"),
        (lambda data: b"X" + data[1:], "found b'XLHASHES'"),
        (lambda data: data[:8] + b"\x02" + data[9:], "version 2"),
        (lambda data: data[:16] + b"\x02" + data[17:], "another checksum"),
        (lambda data: data[:-1], "found 3 in 47 bytes"),
        (lambda data: data + b"\0", "found 3 in 49 bytes"),
    ],
)
def test_damaged_files_are_refused(prefix, change, message):
    path = Path(hashes_path(prefix))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DatasetFormatError, match=message):
        read_document_hashes(prefix)


def test_hashes_of_another_pair_are_refused(prefix, tmp_path):
    data = Path(hashes_path(prefix)).read_bytes()
    for name, corpus, message in (("a", [[[1]]], "of 1 documents"), ("b", [[[1, 2]], [[3]], []], "another pair")):
        other = write_pair(tmp_path / name, corpus)
        Path(hashes_path(other)).write_bytes(data)
        with pytest.raises(DatasetFormatError, match=message):
            read_document_hashes(other)


def test_a_changed_hash_is_found_by_reading_all(prefix):
    path = Path(hashes_path(prefix))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert verify_dataset(prefix).problems[0].startswith(f"`{path}`: expected hashes with CRC-32 ")
    assert read_document_hashes(prefix) is not None
    with pytest.raises(DatasetFormatError, match="expected hashes with CRC-32"):
        read_document_hashes(prefix, is_checked=True)
