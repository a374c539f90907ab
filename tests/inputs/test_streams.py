import bz2
import gzip
import lzma
import struct
from contextlib import closing
from functools import partial

import pytest
import zstandard
from tests.inputs.corpora import COMPRESSIONS, bad, documents, open_whole, parse_file

from tokenloom.errors import InputError
from tokenloom.inputs.codecs import CODECS, Codec
from tokenloom.inputs.find import find_inputs, inspect_input, split_suffix

LINES = b"one\ntwo\n\nfour\n"
SUFFIXES = [suffix for suffix in COMPRESSIONS if suffix]


def blocks_of(path, block_bytes=6):
    with closing(open_whole(path, input_format="jsonl", block_bytes=block_bytes)) as reader:
        return list(reader.blocks())


def write(path, data):
    path.write_bytes(data)
    return path


zstd = COMPRESSIONS[".zst"]
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
def test_compressed_files_read_like_plain_ones(tmp_path, name, data):
    path = write(tmp_path / name, data)
    for block_bytes in (1, 1000):
        assert b"".join(block.data for block in blocks_of(path, block_bytes)) == LINES


@pytest.mark.parametrize("cut", [0, 9, -1])
def test_truncated_compressed_files_are_errors(tmp_path, cut):
    text = b"some text that is long enough\n" * 100
    for suffix in SUFFIXES:
        path = write(tmp_path / f"a{suffix}", COMPRESSIONS[suffix](text)[:cut])
        with pytest.raises(InputError, match=rf"`.*a{suffix}`: the (gzip|zstd|bz2|xz) data ends too early"):
            blocks_of(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_follows_compressed_data_must_be_compressed_too(tmp_path, suffix):
    with pytest.raises(InputError, match=rf"`.*a{suffix}`: "):
        blocks_of(write(tmp_path / f"a{suffix}", COMPRESSIONS[suffix](LINES) + b"more text\n"))


def large_zstd_window():
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(b"{}\n") + compressor.flush()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("xz", lzma.compress(b"{}\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]), "Memory usage limit"),
        ("zstd", large_zstd_window(), ".*too much memory"),
    ],
)
def test_a_window_that_takes_too_much_memory_is_refused(tmp_path, name, data, reason):
    path = write(tmp_path / f"a.jsonl.{name}", data)
    message = f"cannot decompress the {name} data: {reason}.*\nhint: raise `max_window_bytes` above 128 MiB"
    with pytest.raises(InputError, match=message):
        parse_file(path)
    assert bad(parse_file(path, max_window_bytes=1 << 30)) == [(1, "no key 'text'; found none")]


@pytest.mark.parametrize("name", ["lines.jsonl.lzma", "lines.jsonl"])
def test_a_compression_is_added_by_one_object(tmp_path, monkeypatch, name):
    decoder = partial(lzma.LZMADecompressor, format=lzma.FORMAT_ALONE), (lzma.LZMAError,)
    codec = Codec(name="lzma", suffixes=(".lzma",), magic=b"\x5d\0\0", decoder=lambda _: decoder)
    monkeypatch.setitem(CODECS, "lzma", codec)
    lines = [b'{"text": "one"}\n', b'{"text": "two"}\n' * 3000, b'{"text": "three"}\n']
    path = write(tmp_path / name, b"".join(lzma.compress(data, format=lzma.FORMAT_ALONE) for data in lines))
    assert inspect_input(str(path)).compression == "lzma"
    assert split_suffix("a.txt.lzma") == ("a.txt", "lzma")
    assert [file.path for file in find_inputs([str(tmp_path)]).files] == [str(path)]
    assert documents(parse_file(path)) == [["one"], *[["two"]] * 3000, ["three"]]
