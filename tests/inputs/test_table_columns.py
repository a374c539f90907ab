"""Columns of strings, read where they are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.inputs.corpora import (
    bad,
    documents,
)

from tokenloom.inputs.parsing import parse_block
from tokenloom.inputs.tables import TableBlock
from tokenloom.inputs.utf8_texts import Utf8Texts


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.string_view()]
)
@pytest.mark.parametrize("batches", [[(0, 6)], [(1, 3)], [(3, 0)], [(0, 1), (1, 0), (4, 2)]])
def test_columns_of_strings_are_read_where_they_are(kind: pa.DataType, batches: list[tuple[int, int]]):
    values = ["né", "", "字", "a 👍", "", "b"]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = [values, [], ["c"], [""], ["字", "d"], []]
    whole = pa.record_batch({"text": pa.array(values, type=kind)})
    block = TableBlock(path="table", first_record=1, batches=tuple(whole.slice(*batch) for batch in batches))
    parsed = parse_block(block, ["text"])
    expected = [value for start, count in batches for value in values[start : start + count]]
    assert documents([parsed]) == [value if isinstance(value, list) else [value] for value in expected]
    assert isinstance(parsed.columns[0].texts, list if kind == pa.string_view() else Utf8Texts)


@pytest.mark.parametrize("wrong", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe5\xad"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_column_with_a_text_that_is_not_utf8_is_read_row_by_row(wrong: bytes, kind: pa.DataType):
    binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
    column = pa.array([b"a", wrong, b"b"], type=binary).view(kind)
    parsed = parse_block(
        TableBlock(path="table", first_record=1, batches=(pa.record_batch({"text": column}),)), ["text"]
    )
    assert documents([parsed]) == [["a"], ["b"]]
    assert bad([parsed]) == [(2, f"not UTF-8: byte 0x{wrong[0]:02x} at column 1")]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_character_that_two_rows_share_is_in_neither(kind: pa.DataType):
    binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
    column = pa.array([b"\xe5\xad", b"\x97", b"ok"], type=binary).view(kind)
    parsed = parse_block(
        TableBlock(path="table", first_record=1, batches=(pa.record_batch({"text": column}),)), ["text"]
    )
    assert documents([parsed]) == [["ok"]]
    assert [line for line, _ in bad([parsed])] == [1, 2]
