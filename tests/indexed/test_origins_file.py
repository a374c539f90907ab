"""The bytes of origins, and values that cannot be."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.indexed.columns import put_origins
from tests.indexed.origins import all_records, files_of, runs_of
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origins import read_origins

RUNS_AT = 128


@pytest.fixture
def path(tmp_path):
    """Returns the path of a small file beside a pair of six documents."""
    prefix = write_pair(tmp_path / "some", [[[1]]] * 6)
    runs = [runs_of([(0, 1, 3)]), runs_of([(0, 4, 1), (-1, 9, 1)]), runs_of([(1, 2, 1)])]
    files = files_of("a.jsonl", "b.jsonl")
    put_origins(prefix, files, runs)
    return Path(f"{prefix}.origins.npy")


def read(path: Path) -> list[tuple[int, int]]:
    origins = read_origins(str(path).removesuffix(".origins.npy"))
    assert origins is not None
    return all_records(origins)


def test_the_bytes_are_those_of_the_format(path):
    assert path.read_bytes()[128:] == struct.pack("<9q", 0, 0, 1, 4, -1, 0, 5, 1, 2)
    columns = json.loads(path.with_name("some.columns.json").read_bytes())["columns"]
    files = [{"path": each, "num_bytes": 7, "unit": "line"} for each in ("a.jsonl", "b.jsonl")]
    assert columns["origins"]["about"] == {"files": files}
    assert read(path) == [(0, 1), (0, 2), (0, 3), (0, 4), (-1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("offset", "kind", "value"),
    [
        (0, "q", 1),  # the first document
        (8, "q", 2),  # file
        (8, "q", -2),
        (8, "q", -1),  # which has no record
        (16, "q", 0),  # record
        (16, "q", 1 << 60),
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
    origins = read_origins(str(path).removesuffix(".origins.npy"))
    with pytest.raises(DatasetFormatError, match="expected documents and records of a file as run"):
        origins.locate(np.arange(6))
