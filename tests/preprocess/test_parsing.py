from __future__ import annotations

import json

import pytest

from tokenloom.preprocess.inputs.blocks import LineBlock
from tokenloom.preprocess.parsing import parse_block


def parse(*lines: bytes, keys=("text",), first_line: int = 1):
    data = b"".join(line + b"\n" for line in lines)
    return parse_block(LineBlock(path="lines", data=data, first_record=first_line), keys)


def texts(parsed, index: int = 0) -> list[str]:
    return list(parsed.columns[index].texts)


def test_each_line_is_a_document():
    parsed = parse(b'{"text": "a"}', b'{"id": 1, "text": "b\\n"}')
    assert texts(parsed) == ["a", "b\n"]
    assert (parsed.num_documents, parsed.num_blank_lines, parsed.bad_lines) == (2, 0, [])
    assert parsed.columns[0].document_ends is None


def test_lists_are_documents_of_several_texts():
    parsed = parse(b'{"text": ["a", "b"]}', b'{"text": "c"}', b'{"text": []}', b'{"text": ["d", ""]}')
    assert texts(parsed) == ["a", "b", "c", "d", ""]
    assert parsed.columns[0].document_ends.tolist() == [2, 3, 3, 5]


def test_keys_stay_together():
    parsed = parse(b'{"a": "1", "b": "2"}', b'{"a": "3"}', b'{"b": "4", "a": ["5"]}', keys=("a", "b"))
    assert texts(parsed, 0) == ["1", "5"]
    assert texts(parsed, 1) == ["2", "4"]
    assert [line.line for line in parsed.bad_lines] == [2]


def test_blank_lines_are_counted():
    parsed = parse(b"", b'{"text": "a"}', b"  \t", b"\r")
    assert (texts(parsed), parsed.num_blank_lines) == (["a"], 3)


def test_windows_line_ends_are_white_space():
    assert texts(parse(b'{"text": "a"}\r', b'{"text": "b"}\r')) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'\xef\xbb\xbf{"text": "after a byte order mark"}', "after a byte order mark"),
        (b'{"text": "lone \\ud800 surrogate"}', "lone ? surrogate"),
        (b'{"text": "pair \\ud83d\\ude00"}', "pair \U0001f600"),
        (b'{"score": NaN, "text": "not a number"}', "not a number"),
        (b'{"score": -Infinity, "text": "infinite"}', "infinite"),
        (b'{"id": 123456789012345678901234567890, "text": "long"}', "long"),
        (b'{"text": "first", "text": "last"}', "last"),
        (b'{"text": "\\u0000"}', "\0"),
    ],
)
def test_what_json_of_the_standard_library_reads_is_read(line: bytes, expected: str):
    parsed = parse(line, b'{"text": "x"}')
    assert (texts(parsed), parsed.bad_lines) == ([expected, "x"], [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"text": "a"} x', "not JSON: Extra data at column 15"),
        (b'{"text": "a"},{"text": "b"}', "not JSON: Extra data at column 14"),
        (b'"text"', "expected a JSON object, found a string"),
        (b"[1]", "expected a JSON object, found an array"),
        (b"null", "expected a JSON object, found null"),
        (b"3", "expected a JSON object, found a number"),
        (b"{}", "no key 'text'; found none"),
        (b'{"a": 1, "b": 2}', "no key 'text'; found 'a', 'b'"),
        (b'{"text": null}', "expected a string or an array of strings under 'text', found null"),
        (b'{"text": 1.5}', "expected a string or an array of strings under 'text', found a number"),
        (b'{"text": true}', "expected a string or an array of strings under 'text', found a boolean"),
        (b'{"text": {"text": "a"}}', "expected a string or an array of strings under 'text', found an object"),
        (b'{"text": ["a", 1]}', "expected a string or an array of strings under 'text', found an array with a number"),
        (b'{"text": "caf\xe9"}', "not UTF-8: byte 0xe9 at column 14"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8: byte 0xed at column 11"),
        (b"[" * 100_000, "not JSON that can be read"),
        (b'{"id": ' + b"9" * 5000 + b', "text": "a"}', "not JSON that can be read"),
    ],
)
def test_bad_line_has_its_number_and_reason(line: bytes, reason: str):
    parsed = parse(b'{"text": "a"}', line, b'{"text": "b"}', first_line=10)
    assert texts(parsed) == ["a", "b"]
    [bad_line] = parsed.bad_lines
    assert (bad_line.line, bad_line.data) == (11, line)
    assert bad_line.reason.startswith(reason)


def test_line_that_is_too_long_is_bad():
    parsed = parse_block(LineBlock(path="lines", data=b"xxx", first_record=7, too_long=True), ("a", "b"))
    assert (parsed.num_documents, len(parsed.columns)) == (0, 2)
    assert parsed.bad_lines[0].line == 7
    assert "longer than 268435456 bytes" in parsed.bad_lines[0].reason


def test_careful_and_fast_parsing_agree():
    lines = [json.dumps({"text": f"text {number} é"}).encode() for number in range(50)]
    fast, careful = parse(*lines), parse(b"", *lines)
    assert careful.num_blank_lines == 1
    assert texts(fast) == texts(careful)
    assert careful.columns[0].document_ends.tolist() == list(range(1, 51))
