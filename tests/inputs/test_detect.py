"""Formats and compressions, told from names, first bytes and the user."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.inputs.folders import LINE, found_in, write

from tokenloom.errors import ConfigError
from tokenloom.inputs.find import find_inputs


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jsonl", LINE, ("jsonl", "none")),
        ("a.JSON", LINE, ("jsonl", "none")),
        ("a.jsonl", b"", ("jsonl", "none")),
        ("a.jsonl", gzip.compress(LINE), ("jsonl", "gzip")),
        ("a.jsonl.gz", b"not compressed", ("jsonl", "gzip")),
        ("a.jsonl.zstd", b"", ("jsonl", "zstd")),
        ("a.ndjson.BZ2", b"", ("jsonl", "bz2")),
        ("a.jsonl", b"\xfd7zXZ\x00...", ("jsonl", "xz")),
        ("a.pq", b"", ("parquet", "none")),
        ("no-suffix", b"PAR1...", ("parquet", "none")),
        ("no-suffix", b"ARROW1\0\0", ("arrow", "none")),
        ("no-suffix", b"\xff\xff\xff\xff\0\0\0\0", ("arrow", "none")),
    ],
)
def test_name_and_first_bytes_tell_format_and_compression(tmp_path: Path, name: str, data: bytes, expected):
    write(tmp_path, name, data=data)
    [file] = find_inputs([str(tmp_path / name)]).files
    assert (file.format, file.compression) == expected


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.dat", LINE, {}, "neither the name nor the first bytes of `{path}` tell its format"),
        ("a.dat.gz", LINE, {}, "neither the name nor the first bytes of `{path}` tell its format"),
        ("a.txt", LINE, {}, "`{path}` is text: expected to be told whether a document is a line or a file"),
        ("a.parquet.gz", LINE, {}, "expected Parquet that compresses inside, found a whole file in gzip: `{path}`"),
        ("a", LINE, {"input_format": "xml"}, "expected an input format out of jsonl, text-lines, text-files, "),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path: Path, name: str, data: bytes, options: dict, message: str):
    write(tmp_path, name, data=data)
    with pytest.raises(ConfigError) as caught:
        find_inputs([str(tmp_path / name)], **options)
    assert caught.value.message.startswith(message.format(path=tmp_path / name))


def test_text_is_what_the_user_says(tmp_path: Path):
    write(tmp_path, "a.txt", "b.text.gz", "c.md")
    texts = ["a.txt", "b.text.gz"]
    for chosen, expected in (("text-lines", (texts, ["c.md"])), ("text-files", ([*texts, "c.md"], []))):
        found = find_inputs([str(tmp_path)], input_format=chosen)
        assert found_in(tmp_path, found) == expected
        assert {file.format for file in found.files} == {chosen}
    assert find_inputs([str(tmp_path / "c.md")], input_format="text-files").files[0].format == "text-files"
