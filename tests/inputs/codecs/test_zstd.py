"""What zstd reads and refuses."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.blocks import LINES, blocks_of

from tokenloom.errors import InputError
from tokenloom.inputs.decompression import decompressed


def test_window_that_takes_too_much_memory_is_refused(tmp_path: Path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    with open(tmp_path / "a.zst", "wb") as file:
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with compressor.stream_writer(file) as stream:
            stream.write(LINES)
    with pytest.raises(InputError, match="expected a zstd window of at most 128 MiB") as caught:
        blocks_of(tmp_path / "a.zst")
    assert "--long" in caught.value.hint


def blocks_frame(blocks: list[bytes], *, flags: int = 0, more: bytes = b"\x38") -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([flags]) + more + b"".join(blocks)


def block(kind: int, size: int, content: bytes, *, is_last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + content


def test_zstd_returns_no_more_than_is_asked_for(tmp_path: Path):
    frame = blocks_frame([*[block(1, 128 << 10, b"x")] * 400, block(0, 0, b"", is_last=True)])
    path = tmp_path / "a.zst"
    path.write_bytes(frame + struct.pack("<II", 0x184D2A5F, 3) + b"abc" + frame)
    with path.open("rb") as file:
        read = decompressed(file, str(path), "zstd")
        sizes = []
        while data := read(100_000):
            assert data.strip(b"x") == b""
            sizes.append(len(data))
    assert sum(sizes) == 2 * 400 * (128 << 10)
    assert set(sizes[:-1]) == {100_000}


@given(
    texts=st.lists(st.binary(max_size=400_000), max_size=4),
    checksum=st.booleans(),
    sized=st.booleans(),
    count=st.integers(1, 300_000),
    cut=st.integers(1, 20),
)
def test_zstd_frames_of_any_kind_are_read_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], checksum: bool, sized: bool, count: int, cut: int
):
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=sized)
    data = b"".join(map(compressor.compress, texts))
    path = tmp_path_factory.mktemp("frames") / "a.zst"
    for end in (len(data), len(data) - cut):
        path.write_bytes(data[: max(0, end)])
        found = []
        with path.open("rb") as file:
            read = decompressed(file, str(path), "zstd")
            try:
                while piece := read(count):
                    found.append(piece)
            except InputError as error:
                refusal = error.message
            else:
                refusal = ""
        if end == len(data) and texts:
            assert (refusal, b"".join(found)) == ("", b"".join(texts))
        elif refusal:
            assert refusal == f"`{path}`: the zstd data ends too early"
        else:  # cut off where a frame ends
            assert b"".join(found) in [b"".join(texts[:number]) for number in range(1, len(texts))]
