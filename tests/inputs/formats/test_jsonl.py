"""JSON lines that cost much to read."""

from __future__ import annotations

import json

import pytest
from tests.inputs.corpora import bad, documents

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.parsing import parse_block
from tokenloom.inputs.records import records_of


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
