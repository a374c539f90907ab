"""Small blocks that go through the pipeline as one."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.formats.text_files import FileBlock
from tokenloom.inputs.parsing import parse_block
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.preprocess.bundles import bundled, parse_bundle


def lines(data: bytes, *, first: int = 1) -> JsonLineBlock:
    return JsonLineBlock(path="lines", data=data, first_record=first)


def file(data: bytes) -> FileBlock:
    return FileBlock(path="file", data=data)


def test_blocks_are_gathered_up_to_a_size():
    sizes = [3, 3, 4, 9, 11, 1, 0, 9, 1]
    found = [[len(block.data) for block in bundle] for bundle in bundled([file(b"x" * n) for n in sizes], num_bytes=10)]
    assert found == [[3, 3, 4], [9], [11], [1, 0, 9], [1]]
    assert list(bundled([], num_bytes=10)) == []


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_every_block_comes_once_in_order_and_lists_are_as_long_as_they_may_be(sizes, num_bytes):
    blocks = [file(bytes([number]) * size) for number, size in enumerate(sizes)]
    bundles = list(bundled(blocks, num_bytes=num_bytes))
    assert [block for bundle in bundles for block in bundle] == blocks
    totals = [sum(block.num_text_bytes for block in bundle) for bundle in bundles]
    assert all(total <= num_bytes or len(bundle) == 1 for total, bundle in zip(totals, bundles, strict=True))
    firsts = [bundle[0].num_text_bytes for bundle in bundles[1:]]
    assert all(total + first > num_bytes for total, first in zip(totals, firsts, strict=False))


def test_a_single_block_is_parsed_as_it_is():
    parsed = parse_bundle([lines(b'{"text": "a"}\n')], ["text"])
    assert (list(parsed.columns[0].texts), parsed.columns[0].document_ends) == (["a"], None)


def test_good_lines_of_several_blocks_become_no_strings():
    parsed = parse_bundle([lines('{"text": "é"}\n'.encode()), lines(b'{"text": "b"}\n{"text": ""}')], ["text"])
    (column,) = parsed.columns
    assert isinstance(column.texts, Utf8Texts)
    assert (list(column.texts), column.document_ends) == (["é", "b", ""], None)


def test_documents_bad_records_and_blanks_of_all_blocks_are_kept_in_order():
    bundle = [
        lines(b'{"text": "a"}\n{"text": "b"}\n'),
        file(b" \n"),
        lines(b'{"text": ["c", "d"]}\nbad\n\n{"text": []}\n', first=3),
        file(b"\xff"),
        file(b"e"),
    ]
    parsed = parse_bundle(bundle, ["text"])
    (column,) = parsed.columns
    assert list(column.texts) == ["a", "b", "c", "d", "e"]
    assert column.document_ends is not None
    assert column.document_ends.tolist() == [1, 2, 4, 4, 5]
    assert (parsed.num_documents, parsed.num_blank_lines) == (5, 2)
    assert [bad_line.place for bad_line in parsed.bad_lines] == ["`lines` line 4", "`file`"]
    assert parsed.left_out.tolist() == [[2, 1], [4, 2], [7, 1]]


@given(
    st.lists(
        st.lists(st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=3)), max_size=4), min_size=1
    )
)
def test_a_bundle_is_its_blocks_one_after_the_other(contents):
    blocks = [lines("".join(json.dumps({"text": value}) + "\n" for value in values).encode()) for values in contents]
    (column,) = parse_bundle(blocks, ["text"]).columns
    ends = np.arange(1, len(column.texts) + 1) if column.document_ends is None else column.document_ends
    documents = [list(column.texts[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]
    expected = [[value] if isinstance(value, str) else value for values in contents for value in values]
    assert documents == expected
    assert sum(parse_block(block, ["text"]).num_documents for block in blocks) == len(expected)
