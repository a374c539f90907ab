"""Files of text as documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inputs.corpora import (
    COMPRESSIONS,
    documents,
    parse_file,
)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_file_of_text_is_a_document_as_it_is(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSIONS[suffix]("\ufeffone\r\n\n\0 two\n".encode()))
    assert documents(parse_file(path, input_format="text-files")) == [["one\r\n\n\0 two\n"]]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a\ncaf\xe9", "not UTF-8: byte 0xe9 at column 6"),
        ("text".encode("utf-16"), "expected UTF-8, found the byte order mark of UTF-16"),
        (b"x" * 3000, "longer than 2000 bytes, which `max_record_bytes` allows; only its beginning is kept"),
    ],
)
def test_a_file_of_text_that_is_none_is_a_bad_record(tmp_path: Path, data: bytes, reason: str):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    [block] = parse_file(path, input_format="text-files", max_record_bytes=2000)
    [line] = block.bad_lines
    assert (line.path, line.unit, line.line, line.reason) == (str(path), "file", 1, reason)
    assert line.data == data[:1024]
    assert (block.num_documents, documents([block])) == (0, [])


@pytest.mark.parametrize("data", [b"", b" \n\r\n"])
def test_a_file_of_white_space_is_blank(tmp_path: Path, data: bytes):
    (tmp_path / "a.txt").write_bytes(data)
    [block] = parse_file(tmp_path / "a.txt", input_format="text-files")
    assert (block.num_documents, block.num_blank_lines, block.bad_lines) == (0, 1, [])
