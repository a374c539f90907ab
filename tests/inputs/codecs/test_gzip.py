"""What gzip refuses."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.inputs.blocks import LINES, blocks_of, write
from tests.inputs.corpora import parse_file

from tokenloom.errors import InputError


def test_damaged_checksum_is_an_error(tmp_path: Path):
    data = bytearray(gzip.compress(LINES))
    data[-6] ^= 255
    with pytest.raises(InputError, match="expected gzip data, but it is damaged"):
        blocks_of(write(tmp_path / "a.gz", bytes(data)))


def test_a_header_of_gzip_without_end_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"\x1f\x8b\x08\x08" + bytes(6) + b"A" * (2 << 20))
    with pytest.raises(InputError, match="expected gzip data, but it is damaged"):
        parse_file(path)
