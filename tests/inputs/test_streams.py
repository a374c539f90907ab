"""Compressed files: read like plain ones, or refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from tests.inputs.corpora import bad, open_whole, parse_file

from tokenloom.errors import InputError
from tokenloom.inputs.formats.jsonl import JsonLineBlock

LINES = b"one\ntwo\n\nfour\n"


def blocks_of(path: Path, block_bytes: int = 6) -> list[JsonLineBlock]:
    with closing(open_whole(path, input_format="jsonl", block_bytes=block_bytes)) as reader:
        return list(reader.blocks())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


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
def test_compressed_files_read_like_plain_ones(tmp_path: Path, name: str, data: bytes):
    path = write(tmp_path / name, data)
    for block_bytes in (1, 1000):
        assert b"".join(block.data for block in blocks_of(path, block_bytes)) == LINES


@pytest.mark.parametrize("cut", [0, 9, -1])
def test_truncated_compressed_files_are_errors(tmp_path: Path, cut: int):
    text = b"some text that is long enough\n" * 100
    for name, compress in COMPRESSIONS.items():
        path = write(tmp_path / name, compress(text)[:cut])
        with pytest.raises(InputError, match=rf"`.*{name}`: the (gzip|zstd|bz2|xz) data ends too early"):
            blocks_of(path)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_what_follows_compressed_data_must_be_compressed_too(tmp_path: Path, name: str):
    with pytest.raises(InputError, match=rf"`.*{name}`: "):
        blocks_of(write(tmp_path / name, COMPRESSIONS[name](LINES) + b"more text\n"))


def test_a_dictionary_of_xz_that_takes_too_much_memory_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b"{}\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]))
    with pytest.raises(InputError, match="the xz data cannot be decompressed: Memory usage limit") as caught:
        parse_file(path)
    assert "`max_window_bytes`" in caught.value.hint
    assert bad(parse_file(path, max_window_bytes=1 << 30)) == [(1, "no key 'text'; found none")]


def test_window_that_takes_too_much_memory_is_refused(tmp_path: Path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    with open(tmp_path / "a.zst", "wb") as file:
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with compressor.stream_writer(file) as stream:
            stream.write(LINES)
    with pytest.raises(InputError, match=r"the zstd data cannot be decompressed: .*too much memory") as caught:
        blocks_of(tmp_path / "a.zst")
    assert caught.value.hint.endswith("allow more than 128 MiB with `max_window_bytes`")
