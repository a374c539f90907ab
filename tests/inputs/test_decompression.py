"""Compressed files: read like plain ones, or refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from pathlib import Path

import pytest
import zstandard
from tests.inputs.blocks import LINES, blocks_of, write

from tokenloom.errors import InputError


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


COMPRESSIONS = {"a.gz": gzip.compress, "a.zst": zstd, "a.bz2": bz2.compress, "a.xz": lzma.compress}
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"other"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.gz", gzip.compress(LINES)),
        ("a.gz", gzip.compress(LINES[:5]) + gzip.compress(LINES[5:])),
        ("no-suffix", gzip.compress(LINES)),
        ("a.zst", zstd(LINES)),
        ("a.zst", zstd(LINES[:5]) + SKIPPABLE + zstd(LINES[5:])),
        ("a.zst", SKIPPABLE + zstd(LINES) + SKIPPABLE),
        ("no-suffix", zstd(LINES)),
        ("a.bz2", bz2.compress(LINES[:5]) + bz2.compress(LINES[5:])),
        ("no-suffix", bz2.compress(LINES)),
        ("a.xz", lzma.compress(LINES[:5]) + bytes(8) + lzma.compress(LINES[5:]) + bytes(4)),
        ("no-suffix", lzma.compress(LINES)),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 6, 1000])
def test_compressed_files_read_like_plain_ones(tmp_path: Path, name: str, data: bytes, block_bytes: int):
    found = blocks_of(write(tmp_path / name, data), block_bytes)
    assert b"".join(block.data for block in found) == LINES


@pytest.mark.parametrize("cut", [0, 3, 9, -1, -5, -9])
def test_truncated_compressed_files_are_errors(tmp_path: Path, cut: int):
    text = b"some text that is long enough\n" * 100
    for name, compress in COMPRESSIONS.items():
        path = write(tmp_path / name, compress(text)[:cut])
        with pytest.raises(InputError, match=rf"`.*{name}`: the (gzip|zstd|bz2|xz) data ends too early"):
            blocks_of(path)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_foreign_compressed_files_are_errors(tmp_path: Path, name: str):
    with pytest.raises(InputError, match=name):
        blocks_of(write(tmp_path / name, b"this was never compressed, whatever its name says"))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_what_follows_compressed_data_must_be_compressed_too(tmp_path: Path, name: str):
    with pytest.raises(InputError, match=rf"`.*{name}`: "):
        blocks_of(write(tmp_path / name, COMPRESSIONS[name](LINES) + b"more text\n"))
