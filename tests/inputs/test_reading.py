import bz2
import gzip
import itertools
import lzma
import os
import struct
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import (
    COMPRESSIONS,
    bad,
    documents,
    json_lines,
    open_limited,
    open_whole,
    parse_file,
    parse_slices,
    write_arrow,
    write_data,
    write_parquet,
)

from tokenloom.errors import InputError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.codecs import CODECS, Codec
from tokenloom.inputs.find import cut_inputs, find_inputs, inspect_input, split_suffix, whole_file
from tokenloom.inputs.record_format import open_slice

ROWS = [{"id": number, "text": f"text {number}"} for number in range(300)]


def write_rows(path):
    if path.suffix == ".parquet":
        return write_parquet(path, ROWS, row_group_size=100)
    if path.suffix == ".arrow":
        return write_arrow(path, ROWS, batch_rows=50)
    return write_data(path, COMPRESSIONS.get(path.suffix, bytes)(json_lines(ROWS)))


NAMES = ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"more\n"), r"it grew from \d+ to \d+ bytes\nhint: run"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "it shrank from "),
        (lambda path: os.utime(path, ns=(1, 1)), "it was replaced or modified"),
        (lambda path: path.unlink(), "it no longer exists"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_another_one_now_is_refused(tmp_path, name, change, what):
    path = write_rows(tmp_path / name)
    slice_ = whole_file(inspect_input(str(path)))
    with closing(open_slice(slice_, block_bytes=500)) as reader:
        blocks = reader.blocks()
        next(blocks)
        change(path)
        with pytest.raises(InputError, match=f"changed after the job was planned: {what}"):
            list(blocks)
    with pytest.raises(InputError, match=f"changed after the job was planned: {what}"):
        open_slice(slice_, block_bytes=500)


PROGRAM = """
import sys
from tokenloom.inputs.find import cut_inputs, find_inputs
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import parse_block

[[slice_]] = cut_inputs(find_inputs(["-"], input_format=sys.argv[1]).files, shard_bytes=1)
reader = open_slice(slice_, block_bytes=100, keys=["text"])
for block in reader.blocks():
    print(*parse_block(block, ["text"]).columns[0].texts, sep="\\n")
reader.close()
"""


@pytest.mark.parametrize(
    ("name", "input_format"), [pytest.param("a.jsonl.zst", "jsonl", marks=pytest.mark.slow), ("a.arrows", "arrow")]
)
def test_standard_input_is_read_to_its_end(tmp_path, name, input_format):
    path = tmp_path / name
    data = write_arrow(path, ROWS, stream=True) if name == "a.arrows" else write_rows(path)
    command = [sys.executable, "-c", PROGRAM, input_format]
    done = subprocess.run(command, input=data.read_bytes(), capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[:-1] == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_read_like_files(bucket, tmp_path, name):
    address = bucket.put(name, write_rows(tmp_path / name).read_bytes())
    slices = [slice_ for shard in cut_inputs(find_inputs([address]).files, shard_bytes=1500) for slice_ in shard]
    assert len(slices) > 1 or name not in ("a.jsonl", "a.parquet")
    assert documents(parse_slices(slices, block_bytes=700)) == [[row["text"]] for row in ROWS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_an_object_that_is_replaced_is_refused(bucket, tmp_path, name):
    data = write_rows(tmp_path / name).read_bytes()
    slice_ = whole_file(inspect_input(bucket.put(name, data)))
    bucket.put(name, data + b"x")
    with pytest.raises(InputError, match=f"changed after the job was planned: it grew from {len(data)} to"):
        open_slice(slice_, block_bytes=100)
    bucket.put(name, data)
    with closing(open_slice(slice_, block_bytes=100)) as reader:
        blocks = reader.blocks()
        next(blocks)
        bucket.put(name, bytes(reversed(data)))
        with pytest.raises(InputError, match=r"changed after the job was planned: (it|the object) was replaced"):
            list(blocks)
    bucket.boto3.delete_object(Bucket=bucket.name, Key=name)
    with pytest.raises(InputError, match="changed after the job was planned: it no longer exists"):
        open_slice(slice_, block_bytes=100)


def test_a_range_of_an_object_reads_little_more_than_itself(bucket, tmp_path):
    data = json_lines({"text": "x" * 1000} for _ in range(20_000))  # several blocks of the storage
    file = inspect_input(bucket.put("a.jsonl", data))
    middle = InputSlice(file=file, start=9_000_000, stop=9_500_000)
    before = bucket.proxy.counts["body_bytes"]
    found = documents(parse_slices([middle], block_bytes=100_000))
    assert len(found) == len([at for at in range(0, len(data), 1013) if 9_000_000 <= at < 9_500_000])
    assert bucket.proxy.counts["body_bytes"] - before < 600_000


@pytest.mark.parametrize("name", NAMES)
def test_progress_reaches_the_size_of_the_slice(tmp_path, name):
    path = write_rows(tmp_path / name)
    reader = open_whole(path, keys=["text"], block_bytes=2000)
    positions = []
    for block in reader.blocks():
        assert (block.path, block.unit) == (str(path), "line" if "jsonl" in name else "row")
        positions.append(reader.position)
    assert positions == sorted(positions)
    assert reader.position == reader.num_bytes > 0
    assert reader.num_rows == len(ROWS)
    assert reader.num_text_bytes >= sum(len(row["text"]) for row in ROWS)
    reader.close()
    reader.close()
    assert reader.position == reader.num_bytes


def input_file(path, num_bytes, **changes):
    known = {"format": "jsonl", "compression": "none", "version": "1"} | changes
    return InputFile(path=path, num_bytes=num_bytes, **known)


def bounds(shards):
    return [[(slice_.file.path, slice_.start, slice_.stop) for slice_ in shard] for shard in shards]


LINE_FILES = [input_file(name, num_bytes) for name, num_bytes in zip("abcde", (25, 3, 4, 0, 4), strict=True)]
SMALL_FILES = [("b", 0, 3), ("c", 0, 4), ("d", 0, 0)]
WHOLE_FILES = [
    input_file("a.gz", 25, compression="gzip"),
    input_file("b.arrow", 5, format="arrow"),
    input_file("c.txt", 5, format="text-files"),
    input_file("d.xz", 1, format="text-lines", compression="xz"),
]
STREAM = [input_file("a", 5), input_file("-", 0, is_stream=True), input_file("b", 5)]


@pytest.mark.parametrize(
    ("files", "shard_bytes", "expected"),
    [
        ([], 1, []),
        (LINE_FILES, 10, [[("a", 0, 8)], [("a", 8, 16)], [("a", 16, 25)], SMALL_FILES, [("e", 0, 4)]]),
        (LINE_FILES, 100, [[("a", 0, 25), *SMALL_FILES, ("e", 0, 4)]]),
        (WHOLE_FILES, 10, [[("a.gz", 0, 1)], [("b.arrow", 0, 1), ("c.txt", 0, 1)], [("d.xz", 0, 1)]]),
        (STREAM, 100, [[("a", 0, 5)], [("-", 0, 1)], [("b", 0, 5)]]),
    ],
)
def test_lines_are_cut_and_small_files_share_a_shard(files, shard_bytes, expected):
    assert bounds(cut_inputs(files, shard_bytes=shard_bytes)) == expected


def test_parquet_is_cut_between_row_groups(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"text": "x" * 100} for _ in range(10)], row_group_size=2)
    found = find_inputs([str(path)]).files
    [[(_, start, stop)]] = bounds(cut_inputs(found, shard_bytes=1 << 20))
    assert (start, stop) == (0, 5)
    shards = bounds(cut_inputs(found, shard_bytes=1))
    assert [(start, stop) for [(_, start, stop)] in shards] == [(number, number + 1) for number in range(5)]
    empty = write_parquet(tmp_path / "b.parquet", pytest.importorskip("pyarrow").table({"text": ["a"]}).slice(0, 0))
    assert documents(parse_file(empty)) == []


def test_a_footer_that_is_cut_is_found_before_the_run(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"text": "x"}])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"`.*a\.parquet` as Parquet: ") as caught:
        cut_inputs(find_inputs([str(path)]).files, shard_bytes=10)
    assert "truncated" in caught.value.hint


ODD = [b"", b"a", b"b" * 3, b"c" * 17, b"\r", b"d\r", b"  ", "\u00e9".encode()]


@given(
    lines=st.lists(st.sampled_from(ODD), max_size=15),
    ends=st.booleans(),
    cuts=st.lists(st.integers(0, 80), max_size=6),
    block_bytes=st.integers(1, 30),
    limit=st.sampled_from([8, 1000]),
)
def test_any_cut_of_lines_gives_the_lines_of_the_whole(tmp_path_factory, lines, ends, cuts, block_bytes, limit):
    path = write_data(tmp_path_factory.mktemp("cut") / "a.txt", b"\n".join(lines) + (b"\n" if ends else b""))
    file = inspect_input(str(path), input_format="text-lines")
    options = {"block_bytes": block_bytes, "max_record_bytes": limit}
    places = sorted({0, file.num_bytes, *(min(cut, file.num_bytes) for cut in cuts)})
    slices = [InputSlice(file=file, start=start, stop=stop) for start, stop in itertools.pairwise(places)]
    whole = parse_slices([whole_file(file)], **options)
    parts = parse_slices(slices, **options)
    assert documents(parts) == documents(whole)
    assert [reason for _, reason in bad(parts)] == [reason for _, reason in bad(whole)]
    assert sum(part.num_blank_lines for part in parts) == sum(part.num_blank_lines for part in whole)
    assert documents(whole) == [[line.decode()] for line in lines if line.strip() and len(line) <= limit]


CUT_NAMES = [*(f"a.jsonl{suffix}" for suffix in COMPRESSIONS), "a.parquet", "a.arrow", "a.arrows"]


@given(
    values=st.lists(st.text(max_size=30), min_size=1, max_size=30),
    group_rows=st.integers(1, 8),
    shard_bytes=st.integers(1, 500),
    block_bytes=st.integers(1, 400),
    name=st.sampled_from(CUT_NAMES),
)
def test_shards_of_any_size_hold_every_record_once(
    tmp_path_factory, values, group_rows, shard_bytes, block_bytes, name
):
    path = tmp_path_factory.mktemp("cut") / name
    rows = [{"id": number, "text": value} for number, value in enumerate(values)]
    if name == "a.parquet":
        write_parquet(path, rows, row_group_size=group_rows)
    elif ".arrow" in name:
        write_arrow(path, rows, batch_rows=group_rows, stream=name == "a.arrows")
    else:
        path.write_bytes(COMPRESSIONS[path.suffix if path.suffix in COMPRESSIONS else ""](json_lines(rows)))
    shards = cut_inputs(find_inputs([str(path)]).files, shard_bytes=shard_bytes)
    slices = [slice_ for shard in shards for slice_ in shard]
    assert documents(parse_slices(slices, block_bytes=block_bytes)) == [[value] for value in values]
    if name == "a.jsonl":
        assert all(slice_.stop - slice_.start <= shard_bytes for slice_ in slices)


def test_records_of_a_range_of_bytes_count_from_its_start_and_rows_from_the_file(tmp_path):
    path = write_data(tmp_path / "a.jsonl", json_lines([{"text": "a"}] * 4))
    first, second = (slice_ for [slice_] in cut_inputs(find_inputs([str(path)]).files, shard_bytes=30))
    assert not first.numbers_records_from_its_start
    assert second.numbers_records_from_its_start
    with closing(open_slice(second, block_bytes=1)) as reader:
        assert [block.first_record for block in reader.blocks()] == [1, 2]
    path = write_parquet(tmp_path / "a.parquet", [{"text": None}] * 6, row_group_size=2)
    slices = [slice_ for shard in cut_inputs(find_inputs([str(path)]).files, shard_bytes=1) for slice_ in shard]
    assert not any(slice_.numbers_records_from_its_start for slice_ in slices)
    assert [number for number, _ in bad(parse_slices(slices, block_bytes=100))] == [1, 2, 3, 4, 5, 6]


def test_slices_read_a_line_that_is_longer_than_them_once(tmp_path):
    path = write_data(tmp_path / "a.jsonl", b'{"text": "a"}\n' + b"x" * 3_000_000 + b'\n{"text": "b"}\n')
    file = inspect_input(str(path))
    bounds = [*range(0, file.num_bytes, 500_000), file.num_bytes]
    slices = [InputSlice(file=file, start=start, stop=stop) for start, stop in itertools.pairwise(bounds)]
    parsed = parse_slices(slices, block_bytes=10_000, max_record_bytes=20_000)
    assert documents(parsed) == [["a"], ["b"]]
    assert [line for line, _ in bad(parsed)] == [2]
    reader = open_limited(slices[0], block_bytes=10_000, max_record_bytes=20_000)
    list(reader.blocks())
    assert reader.num_text_bytes < 600_000  # not the rest of the line, which other slices pass over
    reader.close()


FOUR_LINES = b"one\ntwo\n\nfour\n"
SUFFIXES = [suffix for suffix in COMPRESSIONS if suffix]


def blocks_of(path, block_bytes=6):
    with closing(open_whole(path, input_format="jsonl", block_bytes=block_bytes)) as reader:
        return list(reader.blocks())


zstd = COMPRESSIONS[".zst"]
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"other"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.gz", gzip.compress(FOUR_LINES)),
        ("a.gz", gzip.compress(FOUR_LINES[:5]) + gzip.compress(FOUR_LINES[5:])),
        ("no-suffix", gzip.compress(FOUR_LINES)),
        ("a.zst", zstd(FOUR_LINES)),
        ("a.zst", zstd(FOUR_LINES[:5]) + SKIPPABLE + zstd(FOUR_LINES[5:])),
        ("a.zst", SKIPPABLE + zstd(FOUR_LINES) + SKIPPABLE),
        ("no-suffix", zstd(FOUR_LINES)),
        ("a.bz2", bz2.compress(FOUR_LINES[:5]) + bz2.compress(FOUR_LINES[5:])),
        ("no-suffix", bz2.compress(FOUR_LINES)),
        ("a.xz", lzma.compress(FOUR_LINES[:5]) + bytes(8) + lzma.compress(FOUR_LINES[5:]) + bytes(4)),
        ("no-suffix", lzma.compress(FOUR_LINES)),
    ],
)
def test_compressed_files_read_like_plain_ones(tmp_path, name, data):
    path = write_data(tmp_path / name, data)
    for block_bytes in (1, 1000):
        assert b"".join(block.data for block in blocks_of(path, block_bytes)) == FOUR_LINES


@pytest.mark.parametrize("cut", [0, 9, -1])
def test_truncated_compressed_files_are_errors(tmp_path, cut):
    text = b"some text that is long enough\n" * 100
    for suffix in SUFFIXES:
        path = write_data(tmp_path / f"a{suffix}", COMPRESSIONS[suffix](text)[:cut])
        with pytest.raises(InputError, match=rf"`.*a{suffix}`: the (gzip|zstd|bz2|xz) data ends too early"):
            blocks_of(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_follows_compressed_data_must_be_compressed_too(tmp_path, suffix):
    with pytest.raises(InputError, match=rf"`.*a{suffix}`: "):
        blocks_of(write_data(tmp_path / f"a{suffix}", COMPRESSIONS[suffix](FOUR_LINES) + b"more text\n"))


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
    path = write_data(tmp_path / f"a.jsonl.{name}", data)
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
    path = write_data(tmp_path / name, b"".join(lzma.compress(data, format=lzma.FORMAT_ALONE) for data in lines))
    assert inspect_input(str(path)).compression == "lzma"
    assert split_suffix("a.txt.lzma") == ("a.txt", "lzma")
    assert [file.path for file in find_inputs([str(tmp_path)]).files] == [str(path)]
    assert documents(parse_file(path)) == [["one"], *[["two"]] * 3000, ["three"]]
