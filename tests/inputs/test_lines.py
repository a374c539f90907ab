from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.blocks import LINES, blocks_of, write

from tokenloom.errors import StorageError


def test_blocks_hold_whole_lines_and_know_their_number(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", LINES))
    assert [(block.data, block.first_record) for block in found] == [(b"one\n", 1), (b"two\n\n", 2), (b"four\n", 4)]


def test_last_line_may_lack_its_newline(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", b"one\ntwo"), 4)
    assert [(block.data, block.first_record) for block in found] == [(b"one\n", 1), (b"two", 2)]


def test_empty_file_has_no_blocks(tmp_path: Path):
    assert blocks_of(write(tmp_path / "a", b"")) == []


def test_line_longer_than_a_block_is_one_block(tmp_path: Path):
    line = b"x" * 1000 + b"\n"
    assert [block.data for block in blocks_of(write(tmp_path / "a", line + b"y\n"), 7)] == [line, b"y\n"]


def test_line_beyond_the_limit_is_dropped_but_for_its_beginning(tmp_path: Path):
    data = b"a\n" + b"x" * 5000 + b"\nb\nc\n"
    found = blocks_of(write(tmp_path / "a", data), 64, max_record_bytes=1000)
    assert [block.first_record for block in found if block.too_long] == [2]
    [head] = [block.data for block in found if block.too_long]
    assert head == b"x" * len(head)
    assert 900 < len(head) <= 1024
    assert b"".join(block.data for block in found if not block.too_long) == b"a\nb\nc\n"
    assert [block.first_record for block in found if not block.too_long] == [1, 3]


def test_line_beyond_the_limit_may_end_the_file(tmp_path: Path):
    found = blocks_of(write(tmp_path / "a", b"x" * 5000), 64, max_record_bytes=1000)
    assert [(block.first_record, block.too_long) for block in found] == [(1, True)]


@given(lengths=st.lists(st.integers(0, 60), max_size=12), block_bytes=st.integers(1, 25))
def test_limit_is_exact_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block_bytes: int
):
    lines = [b"x" * length for length in lengths]
    path = write(tmp_path_factory.mktemp("limit") / "a", b"".join(line + b"\n" for line in lines))
    found = blocks_of(path, block_bytes, max_record_bytes=30)
    assert [block.first_record for block in found if block.too_long] == [
        number for number, line in enumerate(lines, 1) if len(line) > 30
    ]
    numbered = [
        (block.first_record + index, line)
        for block in found
        if not block.too_long
        for index, line in enumerate(block.data.split(b"\n")[:-1])
    ]
    assert numbered == [(number, line) for number, line in enumerate(lines, 1) if len(line) <= 30]


@given(data=st.text("ab\n", max_size=200), block_bytes=st.integers(1, 40))
def test_blocks_together_are_the_file(tmp_path_factory: pytest.TempPathFactory, data: str, block_bytes: int):
    path = write(tmp_path_factory.mktemp("blocks") / "a", data.encode())
    found = blocks_of(path, block_bytes)
    assert b"".join(block.data for block in found) == data.encode()
    line = 1
    for block in found:
        assert block.first_record == line
        assert block is found[-1] or block.data.endswith(b"\n")
        line += block.data.count(b"\n")


def test_missing_file_and_folder_are_errors(tmp_path: Path):
    with pytest.raises(StorageError, match=r"cannot open `.*nowhere`: No such file"):
        blocks_of(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="Is a directory"):
        blocks_of(tmp_path)
