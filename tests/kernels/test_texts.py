"""Texts of JSON and text lines: equal to the reference, and accepted only if `orjson` accepts them."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import json_texts as reference

from tokenloom import _native
from tokenloom.inputs.utf8_texts import utf8_texts

KEYS = ("text", "b")


def as_lists(columns) -> list[list[str]]:
    found = []
    for content, offsets in columns:
        assert (content.dtype, offsets.dtype, offsets[0], offsets[-1]) == (np.uint8, np.int64, 0, len(content))
        data = content.tobytes()
        found.append([data[start:stop].decode() for start, stop in pairwise(offsets.tolist())])
    return found


def native(data: bytes, *keys: str, most_unusual: int = 0) -> Any:
    """Returns the texts and the unusual lines; None if more than `most_unusual` lines are unusual."""
    found = _native.json_texts(data, [key.encode() for key in keys], most_unusual)
    if found is None:
        return None
    columns, unusual = found
    assert unusual.dtype == np.int64
    return as_lists(columns), [tuple(row) for row in unusual.reshape(-1, 3).tolist()]


def plain(data: bytes, *keys: str) -> list[list[str]] | None:
    """Returns the texts; None if a line is unusual."""
    found = native(data, *keys)
    return None if found is None else found[0]


def check(data: bytes, *keys: str) -> list[list[str]] | None:
    """Checks the texts against the reference and `orjson`, and returns them; None if a line is unusual."""
    for most_unusual in (2, 1, 0):
        found = native(data, *keys, most_unusual=most_unusual)
        assert found == reference.json_texts(data, keys, most_unusual)
        if found is not None:
            columns, unusual = found
            left_out = {num_before + number for number, (num_before, _, _) in enumerate(unusual)}
            lines = data.removesuffix(b"\n").split(b"\n") if data else []
            assert [lines[number] for number in sorted(left_out)] == [data[start:stop] for _, start, stop in unusual]
            records = [orjson.loads(line) for number, line in enumerate(lines) if number not in left_out]
            assert columns == [[record[key] for record in records] for key in keys]
    return None if found is None else found[0]


def test_unusual_lines_are_named_and_leave_nothing_behind():
    lines = [b"", b'{"a": "1", "b": "2"}', b'{"a": "long", "b": 3}', b'{"b": "4", "a": "5"}', b'{"a": "\xff"}', b"{}"]
    expected = [["1", "5"], ["2", "4"]], [(0, 0, 0), (1, 22, 43), (2, 65, 75), (2, 76, 78)]
    for end in (b"", b"\n"):
        assert native(b"\n".join(lines) + end, "a", "b", most_unusual=4) == expected
        assert native(b"\n".join(lines) + end, "a", "b", most_unusual=3) is None
    check(b"\n".join(lines[1:4]), "a", "b")


def test_keys_are_found_in_any_order():
    lines = b'{"b": "1", "text": "2"}\n{"text": "3", "c": "4", "b": "5"}\n'
    assert check(lines, "text", "b") == [["2", "3"], ["1", "5"]]
    assert check(lines, "b", "text") == [["1", "5"], ["2", "3"]]
    assert check(b'{"": "a", "\xc3\xa9": "b"}', "", "é") == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (r"\"\\\/\b\f\n\r\t", '"\\/\b\f\n\r\t'),
        (r"\u0000\u001f\u007f\u0080\u07ff\u0800\uD7FF\uE000\uffff", "\0\x1f\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff"),
        (r"\ud800\udc00\uDBFF\uDFFF", "\U00010000\U0010ffff"),
        ("\x7f \x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff", None),
        ("", None),
        ("'\u2028\ufeff", None),
    ],
)
def test_every_escape_and_length_of_character(value: str, text: str | None):
    assert check(f'{{"text": "{value}"}}\n'.encode(), "text") == [[value if text is None else text]]


OTHER_VALUES = [
    "0", "-0", "17", "-1.5", "1e10", "1E+99", "2.50e-07", "5e-324", "123456789012345678901234567890", "true", "false",
    "null", "[]", "{}", "[ ]", "{\t}", "[1,[2],{}]", '{"a":{"a":[],"a":1}}', '[ {"text":"no"} , "," ]',
    '"\\u00e9\\ud83d\\ude00"', "[" * 63 + "]" * 63, '{"a":' * 62 + "{}" + "}" * 62, "9" * 64, "0." + "1" * 58 + "e-99",
]  # fmt: skip


@pytest.mark.parametrize("value", OTHER_VALUES)
def test_other_values_are_read_over(value: str):
    for line in (f'{{"x":{value},"text":"a"}}', f'\t {{ "text" : "a" ,\r"\u00e9" : {value}\t}} \r'):
        assert check(line.encode() + b"\n" + line.encode(), "text") == [["a", "a"]]


BAD_VALUES = [
    ":", "01", "-", "+1", "1.", ".5", "1e", "1e+", "1e100", "1e+100", "1e999", "1e-1000", "0x1", "1_0", "9" * 65, "NaN",
    "Infinity", "nul", "True", "[", "]", "[1,]", "[,1]", "[1 2]", "[1}", "{1:2}", '{"a"}', '{"a":}', '{"a":1,}',
    '{"a":1]', "{a:1}", "'a'", '"\t"', '"\\x"', '"\\u12g4"', '"\\u123', '"\\ud800"', '"\\ud800\\u0041"', '"\\udc00"',
    '"\\ud800\\n"', '"a', "1 1", "[" * 64 + "]" * 64, '{"a":' * 63 + "{}" + "}" * 63, '[1,2', "tru e", "/**/1",
    '{"a" 1}', '{"a"::1}', '"\x00"',
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_VALUES)
def test_values_that_are_unusual_are_refused(value: str):
    for line in (f'{{"x":{value},"text":"a"}}', f'{{"text":"a","x":{value}}}', f'{{"text":"a","x":[{value}]}}'):
        assert check(b'{"text":"b"}\n' + line.encode() + b"\n", "text") is None


BAD_LINES = [
    b"", b" ", b"\r", b"{}", b"[]", b'"text"', b"null", b"{", b'{"text"', b'{"text":', b'{"text":"a"',
    b'{"text":"a"} x', b'{"text":"a"}}', b'{"text":"a"},', b'{"text":"a",}', b'{,"text":"a"}', b'{"text":"a" "b":"c"}',
    b'{"text" "a"}', b'{"text":"a"}{"text":"b"}', b'{"text":"a","text":"b"}', b'{"te\\u0078t":"a"}',
    b'{"te\\u0078t":"a","text":"b"}', b'{"text":null}', b'{"text":1}', b'{"text":["a"]}', b'{"text":{"text":"a"}}',
    b'{"texts":"a"}', b'{"tex":"a"}', b'{"Text":"a"}', b'\xef\xbb\xbf{"text":"a"}', b'{"text":"a"}\x00',
    b'\x00{"text":"a"}', b'\x0c{"text":"a"}', b'{"x":{"text":"a"}}', b'{"text":"a\\"}', b"{'text':'a'}",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES)
def test_lines_that_are_unusual_are_refused(line: bytes):
    good = b'{"text":"b"}'
    for lines in ([good, line, good], [line, good], [good, line, b""]):
        assert check(b"\n".join(lines), "text") is None


NOT_UTF8 = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x41", b"\xc2\xc2", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
    b"\xe1\x80", b"\xe1\x80\x41", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xef\xbf", b"\xf0\x80\x80\x80",
    b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80", b"\xf1\x80\x80\x41", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff",
    b"\xfe", b"\xc3\xa9\xa9",
]  # fmt: skip


@pytest.mark.parametrize("wrong", NOT_UTF8)
def test_what_is_not_utf8_is_refused_wherever_it_stands(wrong: bytes):
    for template in (b'{"text":"%b"}', b'{"x":"%b","text":"a"}', b'{"%b":1,"text":"a"}', b'{"text":"a"}%b'):
        assert check(template % wrong, "text") is None
    for before in (*range(18), 31, 32, 33, 1022, 1023, 1024, 1025):
        for text in (b"a" * before + wrong, b"a" * before + wrong + b"a" * 40):
            assert _native.line_texts(text) is None


@pytest.mark.parametrize("unit", ['"', "\\", "\n", "\x00", "é", "字", "👍", "\x7f", "é👍字"])
def test_every_place_in_a_word(unit: str):
    for dumps in (lambda value: json.dumps(value).encode(), orjson.dumps):
        for before in range(36):
            for after in (0, 1, 7, 8, 33):
                text = "a" * before + unit + "b" * after
                line = dumps({"x" * (before % 5): unit, "text": text})
                # The last text ends near the end of the data, with less than one machine word left.
                assert plain(line, "text") == [[text]]
                assert plain(b"\n".join([line, line, line]), "text") == [[text] * 3]


texts = st.text(max_size=70) | st.text('ab"\\\n\té字👍\x00', max_size=70)
integers = st.integers(-(2**63), 2**64 - 1)  # the range of `orjson`; `OTHER_VALUES` has a longer integer
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
objects = st.tuples(st.dictionaries(texts, values, max_size=3), texts, texts, st.booleans()).map(
    lambda parts: (
        {**parts[0], "text": parts[1], "b": parts[2]} if parts[3] else {"b": parts[2], "text": parts[1], **parts[0]}
    )
)


def dumped(value: dict, dumper: int) -> bytes:
    """Returns an object as JSON in the style of one of several writers."""
    if dumper == 0:
        return json.dumps(value).encode()
    if dumper == 1:
        return json.dumps(value, ensure_ascii=False).encode()
    if dumper == 2:
        return json.dumps(value, separators=(" \t,\r ", "\r: "), ensure_ascii=False).encode() + b" \t\r"
    if dumper == 3:
        return b" " + json.dumps(value, indent="\t").encode().replace(b"\n", b"\r")
    return orjson.dumps(value)


lines = st.tuples(objects, st.integers(0, 4)).map(lambda pair: dumped(*pair))


@given(data=st.lists(lines, max_size=4).map(b"\n".join), ends=st.booleans())
def test_what_writers_of_json_write_agrees(data: bytes, ends: bool):
    check(data + b"\n" * ends, *KEYS)
    check(data + b"\n" * ends, "text")


@given(
    st.lists(
        st.tuples(texts, texts, st.integers(-(10**15), 10**15), st.floats(-1e90, 1e90), st.integers(0, 4)), min_size=1
    )
)
def test_plain_good_lines_are_always_accepted(rows: list):
    data = b""
    for text, second, number, score, dumper in rows:
        record = {"id": number, "text": text, "meta": {"score": score, "tags": [None, True, second]}, "b": second}
        data += dumped(record, dumper) + b"\n"
    assert check(data, *KEYS) == [[row[0] for row in rows], [row[1] for row in rows]]


@given(data=st.data(), rows=st.lists(lines, min_size=1, max_size=3))
def test_damaged_lines_are_refused_by_all_or_read_alike(data: st.DataObject, rows: list[bytes]):
    damaged = bytearray(b"\n".join(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        if not damaged:
            break
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from(b'"\\{}[],:ue-0\n\r '))
            case 1:
                del damaged[at : at + data.draw(st.integers(1, 8))]
            case 2:
                damaged[at:at] = bytes(data.draw(st.lists(st.sampled_from(b'"\\{}[],:ue-01\n \xc3\xa9'), max_size=3)))
            case _:
                del damaged[at:]
    check(bytes(damaged), *KEYS)


def test_every_truncation_and_every_byte():
    line = '{"a":[1,-2.5e3,{"b":null}],"text":"x\\u00e9\\ud83d\\ude00é\\n","c":true}'.encode()
    assert check(line, "text") == [["xé😀é\n"]]
    for stop in range(len(line)):
        assert plain(line[:stop], "text") == ([[]] if stop == 0 else None)
    for at in range(len(line)):
        for byte in (0, 0x0A, 0x1F, *b' "\\{}[],:0a', 0x7F, 0x80, 0xC3, 0xFF):
            check(line[:at] + bytes([byte]) + line[at + 1 :], "text")


@pytest.mark.parametrize("data", [b"\n", b"a\n\nb", b"a\n \t\r\x0b\x0c\nb", b"a\n\n", b" "])
def test_blank_lines_of_text_are_refused(data: bytes):
    assert _native.line_texts(data) is None
    assert reference.line_texts(data) is None


BYTES = st.lists(st.integers(0, 255) | st.sampled_from([0x80, 0xBF, 0xE0, 0xED, 0xF0, 0xF4]), max_size=12).map(bytes)


@given(
    lines=st.text(st.sampled_from("a \n\ré\x85\u2028"), max_size=12).map(str.encode),
    line=BYTES.map(lambda data: b"x" + data.replace(b"\n", b"")),
)
def test_lines_of_text_agree_with_the_twin(lines: bytes, line: bytes):
    for data in (lines, line):
        found = _native.line_texts(data)
        assert (None if found is None else as_lists([found])[0]) == reference.line_texts(data)


def texts_with(texts: list[str], ranges: list[tuple[int, int]]) -> list[int]:
    wanted = [[any(start <= ord(letter) < stop for start, stop in ranges) for letter in text] for text in texts]
    return [number for number, found in enumerate(wanted) if any(found)]


def found_with(texts: list[str], ranges: list[tuple[int, int]]) -> list[int]:
    found = utf8_texts(texts)
    return _native.texts_with(found.content, found.offsets, np.array(ranges, dtype=np.uint32).reshape(-1, 2)).tolist()


RANGES = "17F-180 88F-890 A7CE-A7D5 FFFD-10002 1FA00-20000 10FFFF-110000"
SOME_RANGES = [(int(start, 16), int(stop, 16)) for start, stop in (each.split("-") for each in RANGES.split())]
near = st.sampled_from([end + by for ends in SOME_RANGES for end in ends for by in (-65, -1, 0, 1, 64)])
letters = st.one_of(near.filter(lambda number: number < 0x110000).map(chr), st.sampled_from("aé字👍 "))


@given(st.lists(st.text(letters, max_size=8), max_size=8), st.integers(0, 2100), st.data())
def test_texts_with_agrees_with_its_twin(texts: list[str], filling: int, data: st.DataObject):
    ranges = sorted(data.draw(st.sets(st.sampled_from(SOME_RANGES))))
    texts.insert(data.draw(st.integers(0, len(texts))), "e" * filling)
    assert found_with(texts, ranges) == texts_with(texts, ranges)


@pytest.mark.parametrize("ends", [(0x7F, 0x81), (0x900, 0x900), (0x10FFFF, 0x110001)])
def test_ranges_that_are_none_are_refused(ends: tuple[int, int]):
    with pytest.raises(ValueError, match="expected ranges of code points beyond ASCII"):
        found_with(["a"], [ends])
