from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import InputError, StorageError
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.reading import open_slice

LINES = b"one\ntwo\n\nfour\n"


def blocks_of(path: Path, block_bytes: int = 6, **options: int) -> list[JsonLineBlock]:
    slice_ = whole_file(inspect_input(str(path), input_format="jsonl"))
    with closing(open_slice(slice_, block_bytes=block_bytes, **options)) as reader:
        return list(reader.blocks())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_blocks_hold_whole_lines_and_know_their_number(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", LINES))
    assert [(block.data, block.first_record) for block in found] == [(b"one\n", 1), (b"two\n\n", 2), (b"four\n", 4)]


def test_last_line_may_lack_its_newline(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", b"one\ntwo"), 4)
    assert [(block.data, block.first_record) for block in found] == [(b"one\n", 1), (b"two", 2)]


def test_empty_file_has_no_blocks(tmp_path: Path):
    assert blocks_of(write(tmp_path / "a", b"")) == []


def test_line_longer_than_a_block_is_one_block(tmp_path: Path):
    line = b"x" * 1000 + b"\n"
    assert [block.data for block in blocks_of(write(tmp_path / "a", line + b"y\n"), 7)] == [line, b"y\n"]


def test_line_beyond_the_limit_is_dropped_but_for_its_beginning(tmp_path: Path):
    data = b"a\n" + b"x" * 5000 + b"\nb\nc\n"
    found = blocks_of(write(tmp_path / "a", data), 64, max_record_bytes=1000)
    assert [block.first_record for block in found if block.too_long] == [2]
    [head] = [block.data for block in found if block.too_long]
    assert head == b"x" * len(head)
    assert 900 < len(head) <= 1024
    assert b"".join(block.data for block in found if not block.too_long) == b"a\nb\nc\n"
    assert [block.first_record for block in found if not block.too_long] == [1, 3]


def test_line_beyond_the_limit_may_end_the_file(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", b"x" * 5000), 64, max_record_bytes=1000)
    assert [(block.first_record, block.too_long) for block in found] == [(1, True)]


@given(lengths=st.lists(st.integers(0, 60), max_size=12), block_bytes=st.integers(1, 25))
def test_limit_is_exact_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block_bytes: int
):
    lines = [b"x" * length for length in lengths]
    path = write(tmp_path_factory.mktemp("limit") / "a", b"".join(line + b"\n" for line in lines))
    found = blocks_of(path, block_bytes, max_record_bytes=30)
    assert [block.first_record for block in found if block.too_long] == [
        number for number, line in enumerate(lines, 1) if len(line) > 30
    ]
    numbered = [
        (block.first_record + index, line)
        for block in found
        if not block.too_long
        for index, line in enumerate(block.data.split(b"\n")[:-1])
    ]
    assert numbered == [(number, line) for number, line in enumerate(lines, 1) if len(line) <= 30]


@given(data=st.text("ab\n", max_size=200), block_bytes=st.integers(1, 40))
def test_blocks_together_are_the_file(tmp_path_factory: pytest.TempPathFactory, data: str, block_bytes: int):
    path = write(tmp_path_factory.mktemp("blocks") / "a", data.encode())
    found = blocks_of(path, block_bytes)
    assert b"".join(block.data for block in found) == data.encode()
    line = 1
    for block in found:
        assert block.first_record == line
        assert block is found[-1] or block.data.endswith(b"\n")
        line += block.data.count(b"\n")


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


def test_window_that_takes_too_much_memory_is_refused(tmp_path: Path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    with open(tmp_path / "a.zst", "wb") as file:
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with compressor.stream_writer(file) as stream:
            stream.write(LINES)
    with pytest.raises(InputError, match="expected a zstd window of at most 128 MiB") as caught:
        blocks_of(tmp_path / "a.zst")
    assert "--long" in caught.value.hint


def test_damaged_checksum_is_an_error(tmp_path: Path):
    data = bytearray(gzip.compress(LINES))
    data[-6] ^= 255
    with pytest.raises(InputError, match="expected gzip data, but it is damaged"):
        blocks_of(write(tmp_path / "a.gz", bytes(data)))


def test_missing_file_and_folder_are_errors(tmp_path: Path):
    with pytest.raises(StorageError, match=r"cannot open `.*nowhere`: No such file"):
        blocks_of(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="Is a directory"):
        blocks_of(tmp_path)
