"""The bytes of `.origins`, and files that are damaged or hostile."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.indexed.origins import all_records, files_of

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origin_blocks import ENTRY
from tokenloom.indexed.origins import OriginRuns, Origins, parse_origins, write_runs

NAME = "some.origins"


@pytest.fixture
def data(tmp_path):
    """Returns the bytes of a small file."""
    runs = [OriginRuns.of([(0, 1, 3)]), OriginRuns.of([(0, 4, 1), (1, 2, 2)])]
    files = files_of("a.jsonl", "b.jsonl")
    file, checksum = write_runs(str(tmp_path / "some"), files, runs, index_start_crc32=0x01020304)
    file.publish()
    data = Path(tmp_path / NAME).read_bytes()
    assert (checksum.num_bytes, checksum.crc32) == (len(data), zlib.crc32(data))
    return data


def parsed(data: bytes) -> Origins:
    origins, start = parse_origins(np.frombuffer(data, dtype=np.uint8), name=NAME)
    assert start in (0, 0x01020304)
    return origins


def with_crc(data: bytes) -> bytes:
    """Returns the same with the checksum that its header, table and directory have."""
    num_runs, packed_bytes = struct.unpack("<Q", data[32:40])[0], struct.unpack("<Q", data[48:56])[0]
    behind = packed_bytes + ENTRY.itemsize * -(-num_runs // 256)
    crc = zlib.crc32(data[:12] + bytes(4) + data[16:64] + data[len(data) - behind :])
    return data[:12] + struct.pack("<I", crc) + data[16:]


def test_the_bytes_are_those_of_the_format(data):
    table = {"files": [{"path": each, "num_bytes": 7, "unit": "line"} for each in ("a.jsonl", "b.jsonl")]}
    text = json.dumps(table, separators=(",", ":")).encode()
    packed = zlib.compress(text)
    blocks = bytes([0, 1, 3, 0, 2, 0])  # files, records left out before (from -3 on), documents (from 2 on)
    assert data[:8] == b"TLORIGIN"
    assert data[8:12] == struct.pack("<I", 1)
    assert data[16:64] == struct.pack("<IIQQQQQ", 0x01020304, 0, 6, 2, 2, len(packed), len(text))
    assert data[64:70] == blocks
    assert data[70 : 70 + len(packed)] == packed
    assert data[70 + len(packed) :] == struct.pack("<6q2iI4B", 0, 1, -3, 2, 1, 4, 0, 1, zlib.crc32(blocks), 1, 1, 1, 0)
    assert with_crc(data) == data
    assert all_records(parsed(data)) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3)]


def put(data: bytes, offset: int, kind: str, value: int) -> bytes:
    return data[:offset] + struct.pack(kind, value) + data[offset + struct.calcsize(kind) :]


@pytest.mark.parametrize(
    ("offset", "kind", "value", "message"),
    [
        (0, "B", 0, "expected b'TLORIGIN' and version 1"),
        (8, "<I", 2, "found b'TLORIGIN' and version 2"),
        (16, "<I", 0, "of header, table and directory"),
        (24, "<Q", 1, "counts that fit its size"),
        (24, "<Q", 1 << 60, "counts that fit its size"),
        (32, "<Q", (1 << 64) - 1, "counts that fit its size"),
        (32, "<Q", 1 << 30, "counts that fit its size"),
        (48, "<Q", 1 << 40, "counts that fit its size"),
        (56, "<Q", 1 << 40, "counts that fit its size"),
        (56, "<Q", 1 << 20, "counts that fit its size"),
    ],
)
def test_headers_that_do_not_fit_are_refused(data, offset, kind, value, message):
    with pytest.raises(DatasetFormatError, match=f"`{NAME}`: .*{message}"):
        parsed(put(data, offset, kind, value))


@pytest.mark.parametrize(
    ("offset", "kind", "value", "message"),
    [
        (24, "<Q", 7, "the documents of block 0"),
        (32, "<Q", 3, "blocks of 9 bytes, found 6"),
        (32, "<Q", 0, "blocks of documents from 0 to 6|a table of files"),
        (40, "<Q", 3, "3 files, found 2"),
        (48, "<Q", 20, "a table of files"),
        (56, "<Q", 20, "a table of files"),
        (56, "<Q", 5000, "a table of files"),
    ],
)
def test_counts_that_contradict_the_rest_are_refused(data, offset, kind, value, message):
    with pytest.raises(DatasetFormatError, match=f"`{NAME}`: expected ({message})"):
        all_records(parsed(with_crc(put(data, offset, kind, value))))


def test_every_single_changed_byte_is_found_out(data, rng):
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= int(rng.integers(1, 256))
        with pytest.raises(DatasetFormatError):
            all_records(parsed(bytes(changed)))


def test_files_of_every_other_length_are_refused(data):
    for length in range(len(data)):
        with pytest.raises(DatasetFormatError):
            all_records(parsed(data[:length]))
    with pytest.raises(DatasetFormatError):
        parsed(data + b"\0")
