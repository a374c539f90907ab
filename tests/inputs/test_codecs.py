"""A compression that is not ours, added by this file alone: what `zlib` writes."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from tests.inputs.corpora import documents, parse_file

from tokenloom.inputs.codecs import CODECS, Codec
from tokenloom.inputs.find import find_inputs, inspect_input, split_suffix


class Member:
    """A member with the methods of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj()

    def decompress(self, data: bytes, count: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, count)

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(name="zlib", suffixes=(".zz",), magic=b"\x78\x9c", decoder=lambda _: (Member, (zlib.error,)))
    monkeypatch.setitem(CODECS, "zlib", codec)


LINES = [b'{"text": "one"}\n', b'{"text": "two"}\n' * 3000, b'{"text": "three"}\n']


@pytest.mark.parametrize("name", ["lines.jsonl.zz", "lines.jsonl"])
def test_a_compression_is_added_by_one_object(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(b"".join(map(zlib.compress, LINES)))
    assert inspect_input(str(path)).compression == "zlib"
    assert split_suffix("a.txt.zz") == ("a.txt", "zlib")
    assert [file.path for file in find_inputs([str(tmp_path)]).files] == [str(path)]
    assert documents(parse_file(path)) == [["one"], *[["two"]] * 3000, ["three"]]
