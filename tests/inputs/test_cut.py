import itertools
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import (
    COMPRESSIONS,
    bad,
    documents,
    json_lines,
    open_limited,
    parse_file,
    parse_slices,
    write_arrow,
    write_parquet,
)

from tokenloom.errors import InputError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.find import cut_inputs, find_inputs, inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice


def input_file(path, num_bytes, **changes):
    known = {"format": "jsonl", "compression": "none", "version": "1"} | changes
    return InputFile(path=path, num_bytes=num_bytes, **known)


def bounds(shards):
    return [[(slice_.file.path, slice_.start, slice_.stop) for slice_ in shard] for shard in shards]


LINES = [input_file(name, num_bytes) for name, num_bytes in zip("abcde", (25, 3, 4, 0, 4), strict=True)]
SMALL = [("b", 0, 3), ("c", 0, 4), ("d", 0, 0)]
WHOLE = [
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
        (LINES, 10, [[("a", 0, 8)], [("a", 8, 16)], [("a", 16, 25)], SMALL, [("e", 0, 4)]]),
        (LINES, 100, [[("a", 0, 25), *SMALL, ("e", 0, 4)]]),
        (WHOLE, 10, [[("a.gz", 0, 1)], [("b.arrow", 0, 1), ("c.txt", 0, 1)], [("d.xz", 0, 1)]]),
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
    assert [[(start, stop)] for [(_, start, stop)] in bounds(cut_inputs(found, shard_bytes=1))] == [
        [(number, number + 1)] for number in range(5)
    ]
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
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
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


NAMES = [*(f"a.jsonl{suffix}" for suffix in COMPRESSIONS), "a.parquet", "a.arrow", "a.arrows"]


@given(
    values=st.lists(st.text(max_size=30), min_size=1, max_size=30),
    group_rows=st.integers(1, 8),
    shard_bytes=st.integers(1, 500),
    block_bytes=st.integers(1, 400),
    name=st.sampled_from(NAMES),
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
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([{"text": "a"}] * 4))
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
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"x" * 3_000_000 + b'\n{"text": "b"}\n')
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
