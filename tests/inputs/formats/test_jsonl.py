"""JSON lines that cost much to read, and those with something unusual."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import bad, documents

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.records import parse_block, parse_carefully, records_of
from tokenloom.inputs.utf8_texts import Utf8Texts


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"text": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001])
def test_json_that_is_too_deep_is_a_bad_line(line: bytes):
    found = JsonLineBlock(path="lines", first_record=1, data=b'{"text": "ok"}\n' + line + b"\n")
    parsed = parse_block(found, ["text"])
    assert documents([parsed]) == [["ok"]]
    [(number, why)] = bad([parsed])
    assert number == 2
    assert why.startswith("not JSON that can be read: ")
    [_, record] = records_of(found, loads=json.loads)
    assert str(record.value) == why


def test_many_blank_lines_change_no_document_and_no_number():
    data = b"\n \n" * 3000 + b'{"text": "a"}\n' + b"\t\n" * 2000 + b'{"text": "b"}'
    parsed = parse_block(JsonLineBlock(path="lines", first_record=1, data=data), ["text"])
    assert (documents([parsed]), parsed.num_blank_lines) == ([["a"], ["b"]], 8000)
    parsed = parse_block(JsonLineBlock(path="lines", first_record=1, data=data + b"\nbad"), ["text"])
    assert (documents([parsed]), parsed.num_blank_lines) == ([["a"], ["b"]], 8000)
    assert [line for line, _ in bad([parsed])] == [8003]


ODD = [
    r'{"text": "\ud800 alone"}',
    '{"text": ["one", "two"]}',
    '{"text": "twice", "text": "last"}',
    '{"text": "number", "x": NaN}',
    '{"text": 17}',
    '{"t\\u0065xt": "key"}',
    "",
    "no JSON",
    '{"text": "deep", "x": ' + "[" * 80 + "]" * 80 + "}",
]


def block(lines: list[str]) -> JsonLineBlock:
    return JsonLineBlock(path="lines", first_record=11, data="\n".join(lines).encode())


@pytest.mark.parametrize("odd", ODD)
def test_an_unusual_line_is_read_as_alone_and_leaves_its_neighbours_alone(odd: str):
    lines = [json.dumps({"text": f"é {number}" * 100}) for number in range(20)]
    lines[7] = odd
    parsed, careful = parse_block(block(lines), ["text"]), parse_carefully(block(lines), ["text"])
    assert isinstance(parsed.columns[0].texts, Utf8Texts)
    assert documents([parsed]) == documents([careful])
    assert bad([parsed]) == bad([careful])
    assert (parsed.num_blank_lines, parsed.left_out.tolist()) == (careful.num_blank_lines, careful.left_out.tolist())


lines_of_json = st.one_of(st.text(max_size=5).map(lambda text: json.dumps({"text": text * 200})), st.sampled_from(ODD))


@given(st.lists(lines_of_json, min_size=1, max_size=9))
def test_unusual_lines_anywhere_change_nothing(lines: list[str]):
    parsed, careful = parse_block(block(lines), ["text"]), parse_carefully(block(lines), ["text"])
    assert documents([parsed]) == documents([careful])
    assert (bad([parsed]), parsed.num_blank_lines) == (bad([careful]), careful.num_blank_lines)
    assert parsed.left_out.tolist() == careful.left_out.tolist()
