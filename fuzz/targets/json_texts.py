"""Lines of JSON and of text: the kernels against their readable twins, and against `orjson`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
from tests.reference import json_texts as reference

from tokenloom._native import json_texts, line_texts


def as_texts(column: Any) -> list[str]:
    """Returns the texts of an array of bytes and one of offsets."""
    content, offsets = column
    data = content.tobytes()
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    return [data[start:stop].decode() for start, stop in pairwise(offsets.tolist())]


def check(data: bytes) -> None:
    for keys, most_unusual in ((["text"], 0), (["text"], 3), (["text", "b"], 1)):
        columns, unusual = json_texts(data, [key.encode() for key in keys], most_unusual) or (None, None)
        expected = reference.json_texts(data, keys, most_unusual)
        assert (columns is None) == (expected is None), keys
        if columns is None or unusual is None or expected is None:
            continue
        found = [as_texts(column) for column in columns]
        left_out = [tuple(row) for row in unusual.reshape(-1, 3).tolist()]
        assert (found, left_out) == expected, keys
        numbers = {num_before + number for number, (num_before, _, _) in enumerate(left_out)}
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        records = [orjson.loads(line) for number, line in enumerate(lines) if number not in numbers]
        assert found == [[record[key] for record in records] for key in keys]
    _check_lines(data)


def _check_lines(data: bytes) -> None:
    lines = line_texts(data)
    assert (None if lines is None else as_texts(lines)) == reference.line_texts(data)


def seeds() -> Iterable[bytes]:
    yield b'{"text": "a\\n\\u00e9\\ud83d\\ude00"}\n{"id": -1.5e+10, "text": ""}\r\n{"text":"\xc3\xa9\xf0\x9f\x98\x80"}'
    yield b'{"b": "1", "text": "2"}\n{"text": "3", "c": [{"d": [true, false, null]}, {}], "b": "' + b"x" * 60 + b'"}\n'
    yield "Zeilen ohne JSON\nzweite\n第三行\n".encode()
    yield b'{"text": "a"}\n\n{"text": 1}\n{"text": "b", "b": "c"}\n{"b": "\xff"}\n{"text": "d"}'
    yield b'{"text": "' + b"0123456789abcdef" * 8 + b'\\""}\n{"text": "\xed\xa0\x80"}\n'
