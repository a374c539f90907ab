"""Hostile files: small on disk, huge or endless when read. Memory is measured in processes of their own."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import bad, documents, parse_file, parse_slices, write_arrow

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.decompression import decompressed
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.parsing import parse_block
from tokenloom.inputs.patterns import matches
from tokenloom.inputs.records import records_of

MEASURE = """
import json, re, sys
from contextlib import closing
from pathlib import Path
import pyarrow.compute, pyarrow.parquet, zstandard
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.reading import open_slice
from tokenloom.inputs.parsing import parse_block

def most_kilobytes():  # of this program; what `getrusage` tells begins with the program that started it
    return int(re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1])


path, input_format, most_blocks = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
before = most_kilobytes()
num_documents = num_blank = 0
bad = []
slice_ = whole_file(inspect_input(path, input_format=input_format))
with closing(open_slice(slice_, block_bytes=1 << 20, keys=["text"], max_record_bytes=8 << 20)) as reader:
    for number, block in zip(range(most_blocks), reader.blocks()):
        parsed = parse_block(block, ["text"])
        num_documents += parsed.num_documents
        num_blank += parsed.num_blank_lines
        bad += [line.reason for line in parsed.bad_lines]
grown = most_kilobytes() - before
print(json.dumps([num_documents, num_blank, bad, grown << 10]))
"""


def measured(path: Path, *, input_format: str = "", most_blocks: int = 1 << 30) -> tuple[int, int, list[str], int]:
    """Returns documents, blank lines, reasons of bad records, and by how many bytes the process grew."""
    command = [sys.executable, "-c", MEASURE, str(path), input_format, str(most_blocks)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return tuple(json.loads(done.stdout))


def repeated(open_file: Callable[[Path], Any], path: Path, piece: bytes, num_bytes: int) -> Path:
    with open_file(path) as file:
        for _ in range(num_bytes // len(piece)):
            file.write(piece)
    return path


OPENERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl.gz": lambda path: gzip.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.zst": lambda path: zstandard.open(path, "wb"),
    "a.jsonl.bz2": lambda path: bz2.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.xz": lambda path: lzma.open(path, "wb", preset=0),  # noqa: SIM115 - closed by `repeated`
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_line_that_a_compressed_file_repeats_for_ever_is_one_bad_record(tmp_path: Path, name: str):
    path = repeated(OPENERS[name], tmp_path / name, bytes(1 << 20), 64 << 20)
    num_documents, _, reasons, grown = measured(path, input_format="jsonl")
    reason = "longer than 8388608 bytes, which `max_record_bytes` allows; only its beginning is kept"
    assert (num_documents, reasons) == (0, [reason])
    assert grown < 40 << 20


def test_blank_lines_cost_next_to_nothing(tmp_path: Path):
    path = repeated(OPENERS["a.jsonl.zst"], tmp_path / "a.jsonl.zst", b"\n" * (1 << 20), 16 << 20)
    num_documents, num_blank, reasons, grown = measured(path, input_format="jsonl")
    assert (num_documents, num_blank, reasons) == (0, 16 << 20, [])
    assert grown < 40 << 20


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


def test_a_dictionary_of_xz_that_takes_too_much_memory_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b"{}\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]))
    with pytest.raises(InputError, match="expected a xz window of at most 128 MiB, found a larger one") as caught:
        parse_file(path)
    assert "`max_window_bytes`" in caught.value.hint
    assert bad(parse_file(path, max_window_bytes=1 << 30)) == [(1, "no key 'text'; found none")]


def test_a_header_of_gzip_without_end_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"\x1f\x8b\x08\x08" + bytes(6) + b"A" * (2 << 20))
    with pytest.raises(InputError, match="expected gzip data, but it is damaged"):
        parse_file(path)


def test_slices_read_a_line_that_is_longer_than_them_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"x" * 3_000_000 + b'\n{"text": "b"}\n')
    file = inspect_input(str(path))
    bounds = [*range(0, file.num_bytes, 500_000), file.num_bytes]
    slices = [InputSlice(file=file, start=start, stop=stop) for start, stop in itertools.pairwise(bounds)]
    parsed = parse_slices(slices, block_bytes=10_000, max_record_bytes=20_000)
    assert documents(parsed) == [["a"], ["b"]]
    assert [line for line, _ in bad(parsed)] == [2]
    from tokenloom.inputs.reading import open_slice

    reader = open_slice(slices[0], block_bytes=10_000, max_record_bytes=20_000)
    list(reader.blocks())
    assert reader.num_text_bytes < 600_000  # not the rest of the line, which other slices pass over
    reader.close()


BIG = "x" * (1 << 20)
DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([BIG]))
VIEWS = pa.Array.from_buffers(
    pa.string_view(),
    1000,
    [None, pa.py_buffer(struct.pack("<i4sii", 1 << 20, b"xxxx", 0, 0) * 1000), pa.py_buffer(BIG.encode())],
)
LISTS = pa.ListArray.from_arrays(pa.array(range(0, 1001, 4), pa.int32()), DICTIONARY)


@pytest.mark.parametrize(
    ("name", "column"),
    [("a.parquet", DICTIONARY), ("a.arrow", DICTIONARY), ("a.arrow", VIEWS), ("a.arrow", LISTS)],
    ids=["parquet", "dictionary", "views", "lists"],
)
def test_a_text_that_is_stored_once_for_many_rows_takes_little_memory(tmp_path: Path, name: str, column: pa.Array):
    path = tmp_path / name
    table = pa.table({"text": column})
    if name == "a.parquet":
        pq.write_table(table, path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 400
    else:
        write_arrow(path, table, batch_rows=1000)
    num_documents, _, reasons, grown = measured(path, most_blocks=50)
    assert num_documents >= 50
    assert reasons == []
    assert grown < 250 << 20


def test_a_row_of_lists_that_stands_for_too_much_is_a_bad_row(tmp_path: Path):
    rows = pa.ListArray.from_arrays(pa.array([0, 1, 999, 1000], pa.int32()), DICTIONARY)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": rows}))
    parsed = parse_file(path, max_record_bytes=2 << 20)
    assert [len(texts) for texts in documents(parsed)] == [1, 1]
    assert [line for line, _ in bad(parsed)] == [2]
    [line] = [line for block in parsed for line in block.bad_lines]
    assert line.data.startswith(b'{"text": ["xxxx')
    assert len(line.data) == 1024


def test_lists_of_parquet_that_may_stand_for_too_much_are_refused(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": LISTS}), path, compression="zstd")
    message = r"a\.parquet` row group 0: lists of the column 'text\..*' take up to 1\d{9} bytes, more than 536870912"
    with pytest.raises(InputError, match=message):
        parse_file(path, max_unit_bytes=512 << 20)


def test_a_page_that_takes_too_much_memory_is_refused(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * (2 << 20)]}), path, compression="zstd", use_dictionary=False)
    message = "row group 0: a page of the column 'text' takes 20971.. bytes, more than 1048576"
    with pytest.raises(InputError, match=message) as caught:
        parse_file(path, max_unit_bytes=1 << 20)
    assert "`memory_bytes`" in caught.value.hint


def test_long_rows_that_follow_many_short_ones_are_decoded_few_at_a_time(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows = ["a"] * 200_000 + ["x" * (1 << 20)] * 200
    options = {"use_dictionary": False, "row_group_size": 1 << 20, "write_batch_size": 16}  # of a page at least
    pq.write_table(pa.table({"text": rows}), path, compression="zstd", **options)
    num_documents, _, reasons, grown = measured(path)
    assert (num_documents, reasons) == (len(rows), [])
    assert grown < 250 << 20


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 100_000, "more than"),
        (b'{"text": ' + b'{"a":' * 1200 + b"1" + b"}" * 1201, "more than 900 levels"),
        (b'{"text": ["a"], "x": [' + b"{}," * 800_000 + b"{}]}", "more than"),
        (b"{" + b'"text": "a", ' * 1_100_000 + b'"text": ["b"]}', "more than"),
    ],
)
def test_json_too_deep_or_with_too_many_values_is_a_bad_line(line: bytes, reason: str):
    found = JsonLineBlock(path="lines", first_record=1, data=b'{"text": "ok"}\n' + line + b"\n")
    parsed = parse_block(found, ["text"])
    assert documents([parsed]) == [["ok"]]
    [(number, why)] = bad([parsed])
    assert number == 2
    assert why.startswith(f"not JSON that can be read: {reason}")
    [_, record] = records_of(found, loads=json.loads)
    assert str(record.value) == why


def test_signs_within_strings_are_no_values():
    text = '[{:,\\"' * 1_000_000
    data = json.dumps({"text": [text]}).encode() + b"\n"
    assert documents([parse_block(JsonLineBlock(path="lines", first_record=1, data=data), ["text"])]) == [[text]]


def test_many_blank_lines_change_no_document_and_no_number():
    data = b"\n \n" * 3000 + b'{"text": "a"}\n' + b"\t\n" * 2000 + b'{"text": "b"}'
    parsed = parse_block(JsonLineBlock(path="lines", first_record=1, data=data), ["text"])
    assert (documents([parsed]), parsed.num_blank_lines) == ([["a"], ["b"]], 8000)
    parsed = parse_block(JsonLineBlock(path="lines", first_record=1, data=data + b"\nbad"), ["text"])
    assert (documents([parsed]), parsed.num_blank_lines) == ([["a"], ["b"]], 8000)
    assert [line for line, _ in bad([parsed])] == [8003]


def test_globs_of_many_stars_take_no_longer_than_others():
    pattern = "s3://bucket/" + "**/" * 40 + "x"
    assert not matches("s3://bucket/" + "a/" * 40 + "b", pattern)
    assert matches("s3://bucket/" + "a/" * 40 + "x", pattern)
