import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import bad, documents, json_lines, open_whole, parse_file, write_arrow, write_parquet

from tokenloom.errors import InputError
from tokenloom.inputs.records import parse_block
from tokenloom.inputs.tables import TableBlock
from tokenloom.inputs.utf8_texts import Utf8Texts

WRITERS = {"a.parquet": write_parquet, "a.arrow": write_arrow}

TEXT = st.text(max_size=20)


@given(
    plain=st.lists(st.one_of(TEXT, st.none()), max_size=20),
    lists=st.booleans(),
    nested=st.booleans(),
    block_bytes=st.integers(1, 400),
    name=st.sampled_from(sorted(WRITERS)),
    data=st.data(),
)
def test_rows_come_to_what_json_comes_to(tmp_path_factory, plain, lists, nested, block_bytes, name, data):
    folder = tmp_path_factory.mktemp("same")
    values, kind = plain, pa.string()
    if lists:
        values = [data.draw(st.one_of(st.none(), st.lists(st.one_of(TEXT, st.none()), max_size=3))) for _ in plain]
        kind = pa.list_(kind)
    column, key = pa.array(values, type=kind), "text"
    records = [{"text": value} for value in values]
    if nested:
        column, key = pa.StructArray.from_arrays([column], ["text"]), "meta.text"
        records = [{"meta": record} for record in records]
    path = WRITERS[name](folder / name, pa.table({key.split(".")[0]: column, "id": pa.array(range(len(plain)))}))
    lines = folder / "a.jsonl"
    lines.write_bytes(json_lines(records))
    table = parse_file(path, [key], block_bytes=block_bytes)
    expected = parse_file(lines, [key], block_bytes=block_bytes)
    assert documents(table) == documents(expected)
    assert bad(table) == bad(expected)
    found = [[json.loads(line.data) for block in each for line in block.bad_lines] for each in (table, expected)]
    assert found[0] == found[1]


BAD_COLUMNS = [
    (pa.array([1, 2]), "found a number"),
    (pa.array([True, False]), "found a boolean"),
    (pa.array([None, None]), "found null"),
    (pa.array([b"a", b"b"]), "found a value of type bytes"),
    (pa.array([{"x": "a"}, {"x": "b"}]), "found an object"),
    (pa.array([[1], [2]]), "found an array with a number"),
    (pa.array([[["a"]], [["b"]]]), "found an array with an array"),
]


@pytest.mark.parametrize(("column", "found"), BAD_COLUMNS)
def test_what_is_no_text_is_bad_in_the_words_of_json(tmp_path, column, found):
    path = write_parquet(tmp_path / "a.parquet", pa.table({"text": column}))
    parsed = parse_file(path)
    reason = f"expected a string or an array of strings under 'text', {found}"
    assert bad(parsed) == [(1, reason), (2, reason)]
    assert {(line.path, line.unit) for block in parsed for line in block.bad_lines} == {(str(path), "row")}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("key", ["content", "meta.text.more"])
def test_a_column_that_is_missing_is_named_with_those_there_are(tmp_path, name, key):
    path = WRITERS[name](tmp_path / name, [{"text": "a", "meta": {"text": "b"}}])
    with pytest.raises(InputError) as caught:
        open_whole(path, keys=[key])
    assert caught.value.message == f"`{path}`: no column {key!r}; found 'text', 'meta'"
    assert caught.value.hint == "set the key to one of these columns"


@pytest.mark.parametrize("name", WRITERS)
def test_only_the_columns_of_the_keys_are_read(tmp_path, name):
    rows = [{"big": "x" * 1000, "text": "a", "meta": {"text": "b", "more": "y" * 1000}}] * 50
    path = WRITERS[name](tmp_path / name, rows)
    reader = open_whole(path, keys=["text"])
    assert {tuple(batch.schema.names) for block in reader.blocks() for batch in block.batches} == {("text",)}
    assert (reader.num_rows, reader.position) == (50, reader.num_bytes)
    assert reader.num_text_bytes < 1000
    reader.close()


@pytest.mark.parametrize("name", WRITERS)
def test_rows_that_are_too_long_keep_their_beginning(tmp_path, name):
    path = WRITERS[name](tmp_path / name, [{"text": "short"}, {"text": "x" * 5000}, {"text": "y" * 2000}])
    parsed = parse_file(path, max_record_bytes=2000)
    assert documents(parsed) == [["short"], ["y" * 2000]]
    assert bad(parsed) == [(2, "longer than 2000 bytes (`max_record_bytes`); only its start is shown")]
    [line] = [line for block in parsed for line in block.bad_lines]
    assert len(line.data) == 1024


def test_blocks_gather_small_batches_and_cut_large_ones(tmp_path):
    path = write_arrow(tmp_path / "small.arrow", [{"text": "x" * 96}] * 100, batch_rows=1)
    reader = open_whole(path, keys=["text"], block_bytes=1100)
    assert {len(block.batches) for block in reader.blocks()} == {1, 11}
    path = write_arrow(tmp_path / "large.arrow", [{"text": "x" * 96}] * 100, batch_rows=100)
    reader = open_whole(path, keys=["text"], block_bytes=1000)
    blocks = reader.blocks()
    first = next(blocks)
    reader.block_bytes = 2000
    assert first.num_text_bytes <= 1000
    assert {block.first_record for block in blocks} >= {1 + first.batches[0].num_rows}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.string_view()]
)
@pytest.mark.parametrize("batches", [[(0, 6)], [(0, 1), (1, 0), (4, 2)]])
def test_columns_of_strings_are_read_where_they_are(kind, batches):
    values = ["né", "", "字", "a 👍", "", "b"]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = [values, [], ["c"], [""], ["字", "d"], []]
    whole = pa.record_batch({"text": pa.array(values, type=kind)})
    block = TableBlock(path="table", first_record=1, batches=tuple(whole.slice(*batch) for batch in batches))
    parsed = parse_block(block, ["text"])
    expected = [value for start, count in batches for value in values[start : start + count]]
    assert documents([parsed]) == [value if isinstance(value, list) else [value] for value in expected]
    assert isinstance(parsed.columns[0].texts, list if kind == pa.string_view() else Utf8Texts)


@pytest.mark.parametrize("wrong", [b"\xff", b"\xed\xa0\x80", b"\xe5\xad"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_column_with_a_text_that_is_not_utf8_is_read_row_by_row(wrong, kind):
    binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
    column = pa.array([b"a", wrong, b"b"], type=binary).view(kind)
    block = TableBlock(path="table", first_record=1, batches=(pa.record_batch({"text": column}),))
    parsed = parse_block(block, ["text"])
    assert documents([parsed]) == [["a"], ["b"]]
    assert bad([parsed]) == [(2, f"not UTF-8: value 0x{wrong[0]:02x} at byte 1")]


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_text_in_dictionaries_and_views_is_measured_by_row(tmp_path, kind):
    column = pa.array(["a", "x" * 500, "a", "é"]).cast(kind)
    parsed = parse_file(write_arrow(tmp_path / "a.arrow", pa.table({"text": column})), max_record_bytes=400)
    assert documents(parsed) == [["a"], ["a"], ["é"]]
    assert [number for number, _ in bad(parsed)] == [2]
    columns = [column for block in parsed if not block.bad_lines for column in block.columns]
    assert all(isinstance(column.texts, Utf8Texts) for column in columns)


def test_a_row_of_lists_that_stands_for_too_much_is_a_bad_row(tmp_path):
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * (1 << 12)]))
    rows = pa.ListArray.from_arrays(pa.array([0, 1, 999, 1000], pa.int32()), values)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": rows}))
    parsed = parse_file(path, max_record_bytes=2 << 12)
    assert [len(texts) for texts in documents(parsed)] == [1, 1]
    assert [line for line, _ in bad(parsed)] == [2]
    [line] = [line for block in parsed for line in block.bad_lines]
    assert line.data.startswith(b'{"text": ["xxxx')
    assert len(line.data) == 1024


@pytest.mark.parametrize("cut", [0, 100, -9])
@pytest.mark.parametrize("stream", [True, False])
def test_arrow_that_is_cut_is_an_error(tmp_path, cut, stream):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 100, batch_rows=10, stream=stream)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"`.*a\.arrow`( as Arrow: |: the Arrow stream has no end mark)"):
        parse_file(path)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_a_decoded_batch_above_the_limit_is_refused(tmp_path, stream):
    rows, limit = [{"text": "x" * (15 << 20)}] * 5, 64 << 20
    path = write_arrow(tmp_path / "a.arrow", rows, stream=stream, compression="zstd")
    assert path.stat().st_size < 40_000
    message = rf"row 1: a record batch takes 7864\d{{4}} bytes, more than {limit} .*\n.*`memory_bytes`"
    with pytest.raises(InputError, match=message):
        parse_file(path, memory_bytes=limit)
    assert documents(parse_file(path, memory_bytes=2 * limit)) == [["x" * (15 << 20)]] * 5


def test_a_damaged_row_group_is_an_error_and_the_ones_before_are_read(tmp_path):
    texts = [f"text {number} " + "abcdefgh"[number % 8] * 50 for number in range(400)]
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write_parquet(tmp_path / "a.parquet", [{"text": text} for text in texts], row_group_size=100, **options)
    data = bytearray(path.read_bytes())
    data[data.index(b"text 250")] ^= 255
    path.write_bytes(bytes(data))
    reader = open_whole(path, keys=["text"], block_bytes=500)
    blocks = []
    with pytest.raises(InputError) as caught:
        blocks.extend(reader.blocks())
    assert caught.value.message.startswith(f"`{path}` row 201 or later: damaged Parquet data: ")
    assert sum(len(batch) for block in blocks for batch in block.batches) >= 190
