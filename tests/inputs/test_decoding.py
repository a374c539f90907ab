"""Bytes into text, and what is no text."""

from __future__ import annotations

import codecs

import pytest

from tokenloom.inputs.decoding import MARK_BYTES, begins_as_utf16, decoded, without_mark
from tokenloom.inputs.records import UnusableLineError


def test_a_mark_is_no_part_of_the_text():
    assert without_mark(codecs.BOM_UTF8 + b"text") == b"text"
    assert without_mark(b"text" + codecs.BOM_UTF8) == b"text" + codecs.BOM_UTF8
    assert len(codecs.BOM_UTF8) == MARK_BYTES


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig"])
def test_utf16_is_told_by_its_mark(encoding: str):
    assert begins_as_utf16("text".encode(encoding)) == (encoding == "utf-16")


def test_the_first_wrong_byte_is_named():
    assert decoded("né".encode()) == "né"
    with pytest.raises(UnusableLineError, match="not UTF-8: byte 0xff at column 3"):
        decoded(b"ab\xff")
