"""Lines of text as documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inputs.corpora import (
    bad,
    documents,
    json_lines,
    parse_file,
)

from tokenloom.errors import InputError


def test_a_line_of_text_is_a_document_whatever_it_looks_like(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b'\xef\xbb\xbffirst\n{"text": 1}\r\n\n \t\n\xef\xbb\xbfmark\nnul \0 byte\ncaf\xe9\nlast \xc3\xa9')
    parsed = parse_file(path, input_format="text-lines")
    expected = ["first", '{"text": 1}\r', "\ufeffmark", "nul \0 byte", "last é"]
    assert documents(parsed) == [[text] for text in expected]
    assert bad(parsed) == [(7, "not UTF-8: byte 0xe9 at column 4")]
    assert sum(block.num_blank_lines for block in parsed) == 2


def test_line_ends_of_windows_stay_in_lines_of_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\ntwo\r\n")
    parsed = parse_file(tmp_path / "a.txt", input_format="text-lines")
    assert documents(parsed) == [["one\r"], ["two\r"]]
    assert parsed[0].num_blank_lines == 1


@pytest.mark.parametrize("input_format", ["jsonl", "text-lines"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_lines_of_utf16_are_refused(tmp_path: Path, input_format: str, encoding: str, block_bytes: int):
    path = tmp_path / "a"
    path.write_bytes('\ufeff{"text": "a"}\n'.encode(encoding))
    with pytest.raises(InputError, match=r"`.*/a`: expected UTF-8, found the byte order mark of UTF-16") as caught:
        parse_file(path, input_format=input_format, block_bytes=block_bytes)
    assert "iconv" in caught.value.hint


def test_mixed_encodings_spoil_their_lines_only(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n' + json_lines([{"text": "é"}]))
    parsed = parse_file(path)
    assert documents(parsed) == [["a"], ["é"]]
    assert bad(parsed) == [(2, "not UTF-8: byte 0xe9 at column 14")]
