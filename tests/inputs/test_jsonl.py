import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import bad, documents, json_lines, parse_file
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.records import parse_block, parse_carefully
from tokenloom.inputs.utf8_texts import Utf8Texts, utf8_of, utf8_texts
from tokenloom.tokenizers.engines import GigatokenEngine
from tokenloom.tokenizers.plain import ByteTokenizer


def parse(*lines, keys=("text",), first_line=1):
    data = b"".join(line + b"\n" for line in lines)
    return parse_block(JsonLineBlock(path="lines", data=data, first_record=first_line), keys)


def texts(parsed, index=0):
    return list(parsed.columns[index].texts)


def is_native(parsed):
    return all(isinstance(column.texts, Utf8Texts) for column in parsed.columns)


@pytest.mark.parametrize(
    ("lines", "keys"),
    [
        ([b'{"text": "a"}', b'{"id": 1.5e-3, "text": "\\u00e9\\n", "more": {"x": [null]}}\r'], ("text",)),
        (['{"é": "字", "b": "👍"}'.encode()] * 3, ("b", "é")),
        ([], ("text",)),
    ],
)
def test_good_lines_become_no_strings(lines, keys):
    parsed = parse(*lines, keys=keys)
    assert is_native(parsed)
    for number, key in enumerate(keys):
        assert texts(parsed, number) == [json.loads(line)[key] for line in lines]


@pytest.mark.parametrize(
    ("lines", "keys", "expected"),
    [
        ([b'{"a.b": "c"}', b'{"a": {"b": "d"}}'], ("a.b",), ["c", "d"]),
        ([b'{"te\\u0078t": "a"}', b'{"text": "b", "x": 1e200}'], ("text",), ["a", "b"]),
        ([b'{"text": "a", "x": ' + b"[" * 100 + b"]" * 100 + b"}"], ("text",), ["a"]),
        ([b'{"text": "a"}'], ("text", "text"), ["a"]),
    ],
)
def test_what_the_kernel_refuses_is_read_as_ever(lines, keys, expected):
    parsed = parse(*lines, keys=keys)
    assert not is_native(parsed)
    assert [texts(parsed, number) for number in range(len(keys))] == [expected] * len(keys)


def test_keys_stay_together_and_a_key_that_is_no_utf8_is_not_found():
    [bad_line] = parse(b'{"text": "a"}', keys=("\ud800",)).bad_lines
    assert bad_line.reason == "no key '\\ud800'; found 'text'"
    parsed = parse(b'{"a": "1", "b": "2"}', b'{"a": "3"}', b'{"b": "4", "a": ["5"]}', keys=("a", "b"))
    assert (texts(parsed, 0), texts(parsed, 1)) == (["1", "5"], ["2", "4"])
    assert ([line.line for line in parsed.bad_lines], parsed.skipped.tolist()) == ([2], [1])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'\xef\xbb\xbf{"text": "after a byte order mark"}', "after a byte order mark"),
        (b'{"text": "pair \\ud83d\\ude00"}', "pair \U0001f600"),
        (b'{"score": NaN, "text": "not a number"}', "not a number"),
        (b'{"score": -Infinity, "text": "infinite"}', "infinite"),
        (b'{"id": 123456789012345678901234567890, "text": "long"}', "long"),
        (b'{"text": "first", "text": "last"}', "last"),
        (b'{"text": "\\u0000"}', "\0"),
    ],
)
def test_what_json_of_the_standard_library_reads_is_read(line, expected):
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
        (b'{"text": "lone \\ud800 surrogate"}', "'text' is not valid Unicode: lone surrogate U+D800 at character 6"),
        (b'{"text": ["a", "\\udc00\\ud800"]}', "'text' is not valid Unicode: lone surrogate U+DC00 at character 1"),
        (b"{}", "no key 'text'; found none"),
        (b'{"a": 1, "b": 2}', "no key 'text'; found 'a', 'b'"),
        (b'{"text": null}', "expected a string or an array of strings under 'text', found null"),
        (b'{"text": 1.5}', "expected a string or an array of strings under 'text', found a number"),
        (b'{"text": true}', "expected a string or an array of strings under 'text', found a boolean"),
        (b'{"text": {"text": "a"}}', "expected a string or an array of strings under 'text', found an object"),
        (b'{"text": ["a", 1]}', "expected a string or an array of strings under 'text', found an array with a number"),
        (b'{"text": "caf\xe9"}', "not UTF-8: value 0xe9 at byte 14"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8: value 0xed at byte 11"),
        (b"[" * 100_000, "unsupported JSON"),
        (b'{"text": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001, "unsupported JSON"),
        (b'{"id": ' + b"9" * 5000 + b', "text": "a"}', "unsupported JSON"),
    ],
)
def test_bad_line_has_its_number_and_reason(line, reason):
    parsed = parse(b'{"text": "a"}', line, b'{"text": "b"}', first_line=10)
    assert texts(parsed) == ["a", "b"]
    [bad_line] = parsed.bad_lines
    assert (bad_line.line, bad_line.data) == (11, line)
    assert bad_line.reason.startswith(reason)


def test_line_that_is_too_long_is_bad():
    parsed = parse_block(JsonLineBlock(path="lines", data=b"xxx", first_record=7, too_long=True), ("a", "b"))
    assert (parsed.num_documents, len(parsed.columns)) == (0, 2)
    assert parsed.bad_lines[0].line == 7
    assert "longer than 16777216 bytes" in parsed.bad_lines[0].reason


def test_keys_lead_into_objects_unless_they_hold_the_dot_themselves(tmp_path):
    path = tmp_path / "a.jsonl"
    inner = {"meta": {"text": "inner", "a.b": {"c": "x"}}}
    path.write_bytes(json_lines([inner, {**inner, "meta.text": "literal"}, {"meta": "no object"}, {"meta": None}]))
    parsed = parse_file(path, ["meta.text"])
    assert documents(parsed) == [["inner"], ["literal"]]
    assert bad(parsed) == [(3, "no key 'meta.text'; found 'meta'"), (4, "no key 'meta.text'; found 'meta'")]
    assert documents(parse_file(path, ["meta.text", "meta"])) == []
    path.write_bytes(json_lines([{"meta": {"text": "a"}, "id": "1"}] * 3))
    parsed = parse_file(path, ["meta.text", "id"])
    assert [documents(parsed, number) for number in (0, 1)] == [[["a"]] * 3, [["1"]] * 3]


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


def block(lines):
    return JsonLineBlock(path="lines", first_record=11, data="\n".join(lines).encode())


@pytest.mark.parametrize("odd", ODD)
def test_an_unusual_line_is_read_as_alone_and_leaves_its_neighbours_alone(odd):
    lines = [json.dumps({"text": f"é {number}" * 100}) for number in range(20)]
    lines[7] = odd
    parsed, careful = parse_block(block(lines), ["text"]), parse_carefully(block(lines), ["text"])
    assert isinstance(parsed.columns[0].texts, Utf8Texts)
    assert documents([parsed]) == documents([careful])
    assert bad([parsed]) == bad([careful])
    assert (parsed.num_blank_lines, parsed.skipped.tolist()) == (careful.num_blank_lines, careful.skipped.tolist())


SOME = ["", "né", "字", "", "a 👍 b", "\0", ""]
lists = st.lists(st.text(max_size=8), max_size=6)


@given(texts=lists, start=st.integers(-9, 9) | st.none(), stop=st.integers(-9, 9) | st.none())
def test_texts_are_those_of_a_list(texts, start, stop):
    found = utf8_texts(texts)
    assert (len(found), bool(found)) == (len(texts), bool(texts))
    assert (list(found), list(reversed(found))) == (texts, texts[::-1])
    assert [found[index] for index in range(-len(texts), len(texts))] == [*texts, *texts]
    assert found[start:stop] == texts[start:stop]
    assert found[start:stop:-2] == texts[start:stop:-2]
    assert [bytes(data) for data in utf8_of(found)] == list(utf8_of(texts)) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    "make", [lambda: make_tokenizer(byte_level_json()), make_sentencepiece, make_tiktoken, ByteTokenizer]
)
def test_every_tokenizer_takes_them(make):
    tokenizer = make()
    found, expected = (tokenizer.encode_texts(texts) for texts in (utf8_texts(SOME), SOME))
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


def test_views_into_larger_buffers_are_read_where_they_are():
    data = np.frombuffer("xx字é--".encode(), dtype=np.uint8)
    offsets = np.array([5, 0, 3, 5, 7], dtype=np.int64)[1:4]
    texts = Utf8Texts(content=data[2:7], offsets=offsets)
    assert list(texts) == ["字", "é"]
    tokenizer = make_tokenizer(byte_level_json())
    expected = [*tokenizer.tokenize("字"), *tokenizer.tokenize("é")]
    assert GigatokenEngine(tokenizer).encode_texts(texts).tokens.tolist() == expected
