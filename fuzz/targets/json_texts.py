"""Lines of JSON and of text: the kernels against their readable twins, and against `orjson`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
from tests.reference import json_texts as reference

from tokenloom import kernels


def as_texts(column: Any) -> list[str]:
    """Returns the texts of an array of bytes and one of offsets."""
    content, offsets = column
    data = content.tobytes()
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    return [data[start:stop].decode() for start, stop in pairwise(offsets.tolist())]


def check(data: bytes) -> None:
    for keys in (["text"], ["text", "b"]):
        columns = kernels.json_texts(data, [key.encode() for key in keys])
        found = None if columns is None else [as_texts(column) for column in columns]
        assert found == reference.json_texts(data, keys), keys
        if found is not None:
            records = [orjson.loads(line) for line in data.split(b"\n")[: len(found[0])]]
            assert found == [[record[key] for record in records] for key in keys]
    lines = kernels.line_texts(data)
    assert (None if lines is None else as_texts(lines)) == reference.line_texts(data)


def seeds() -> Iterable[bytes]:
    yield b'{"text": "a\\n\\u00e9\\ud83d\\ude00"}\n{"id": -1.5e+10, "text": ""}\r\n{"text":"\xc3\xa9\xf0\x9f\x98\x80"}'
    yield b'{"b": "1", "text": "2"}\n{"text": "3", "c": [{"d": [true, false, null]}, {}], "b": "' + b"x" * 60 + b'"}\n'
    yield "Zeilen ohne JSON\nzweite\n第三行\n".encode()
    yield b'{"text": "' + b"0123456789abcdef" * 8 + b'\\""}\n{"text": "\xed\xa0\x80"}\n'
