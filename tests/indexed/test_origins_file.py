"""The bytes of `.origins`, and files that are damaged or hostile."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.indexed.origins import all_records, files_of, runs_of, start_of
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origins import read_origins, write_runs

RUNS_AT = 64


@pytest.fixture
def path(tmp_path):
    """Returns the path of a small file beside a pair of six documents."""
    prefix = write_pair(tmp_path / "some", [[[1]]] * 6)
    runs = [runs_of([(0, 1, 3)]), runs_of([(0, 4, 1), (-1, 9, 1)]), runs_of([(1, 2, 1)])]
    files = files_of("a.jsonl", "b.jsonl")
    file, checksum = write_runs(prefix, files, runs, index_start_crc32=start_of(prefix))
    file.publish()
    path = Path(f"{prefix}.origins")
    data = path.read_bytes()
    assert (checksum.num_bytes, checksum.crc32) == (len(data), zlib.crc32(data))
    return path


def read(path: Path, **options: bool) -> list[tuple[int, int]]:
    origins = read_origins(str(path.with_suffix("")), **options)
    assert origins is not None
    return all_records(origins)


def test_the_bytes_are_those_of_the_format(path):
    table = {"files": [{"path": each, "num_bytes": 7, "unit": "line"} for each in ("a.jsonl", "b.jsonl")]}
    text = json.dumps(table, separators=(",", ":")).encode()
    runs = b"".join(struct.pack("<qqiI", *run, 0) for run in ((0, 1, 0), (4, 0, -1), (5, 2, 1)))
    fields = struct.pack("<IIQQQ16x", start_of(str(path.with_suffix(""))), zlib.crc32(runs), 6, 3, len(text))
    own = zlib.crc32(b"TLORIGIN" + struct.pack("<II", 2, 0) + fields + text)
    assert path.read_bytes() == b"TLORIGIN" + struct.pack("<II", 2, own) + fields + runs + text
    assert read(path) == [(0, 1), (0, 2), (0, 3), (0, 4), (-1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("offset", "kind", "value"),
    [
        (0, "q", 1),  # the first document
        (8, "q", 0),  # record
        (8, "q", 1 << 60),
        (16, "i", 2),  # file
        (16, "i", -2),
        (16, "i", -1),  # which has no record
        (24, "q", 9),  # the first document of the second run
        (24, "q", -(1 << 62)),
    ],
)
def test_runs_that_cannot_be_are_refused_without_a_checksum(path, offset, kind, value):
    data = bytearray(path.read_bytes())
    struct.pack_into(f"<{kind}", data, RUNS_AT + offset, value)
    path.write_bytes(data)
    with pytest.raises(DatasetFormatError, match="expected documents and records of a file as run"):
        read(path)
    origins = read_origins(str(path.with_suffix("")))
    with pytest.raises(DatasetFormatError, match="expected documents and records of a file as run"):
        origins.locate(np.arange(6))


def test_every_single_changed_byte_is_found_out(path, rng):
    data = path.read_bytes()
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        with pytest.raises(DatasetFormatError):
            read(path, is_checked=True)
