"""Rows that are small on disk and long when read. Memory is measured in processes of their own."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.inputs.corpora import bad, documents, parse_file, write_arrow
from tests.inputs.measuring import measured

from tokenloom.errors import InputError

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


def test_long_rows_that_follow_many_short_ones_are_decoded_few_at_a_time(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows = ["a"] * 200_000 + ["x" * (1 << 20)] * 200
    options = {"use_dictionary": False, "row_group_size": 1 << 20, "write_batch_size": 16}  # of a page at least
    pq.write_table(pa.table({"text": rows}), path, compression="zstd", **options)
    num_documents, _, reasons, grown = measured(path)
    assert (num_documents, reasons) == (len(rows), [])
    assert grown < 250 << 20
