"""Copying between files in the kernel, and where the kernel cannot."""

from __future__ import annotations

import errno
import os

import pytest

from tokenloom import kernels
from tokenloom.errors import StorageError
from tokenloom.storage.copying import copy_range, first_difference

CONTENT = bytes(range(256)) * 20_000
"""5 MB: several buffers."""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    return str(tmp_path / "source")


def copied(source, tmp_path, *, offset=0, length=5_120_000, before=b"", advance=None):
    target = tmp_path / "target"
    with open(target, "wb", buffering=0) as file:
        file.write(before)
        copy_range(source, file.fileno(), offset=offset, length=length, target_path=str(target), advance=advance)
    return target.read_bytes()


def refusing(number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("refused", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]])
def test_a_range_is_appended_by_any_way(monkeypatch, source, tmp_path, refused):
    for name in refused:
        monkeypatch.setattr(os, name, refusing(errno.EXDEV))
    told = []
    assert copied(source, tmp_path, offset=7, length=3_000_001, before=b"abc", advance=told.append) == (
        b"abc" + CONTENT[7 : 7 + 3_000_001]
    )
    assert sum(told) == 3_000_001


def test_a_way_that_gives_nothing_is_left(monkeypatch, source, tmp_path):
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    assert copied(source, tmp_path) == CONTENT


def test_a_refusal_in_the_middle_goes_on_where_it_stopped(monkeypatch, source, tmp_path):
    whole = os.copy_file_range
    answers = [100_000, 1]

    def partly(source, target, count, offset):
        if not answers:
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(source, target, min(count, answers.pop(0)), offset)

    monkeypatch.setattr(os, "copy_file_range", partly)
    assert copied(source, tmp_path, offset=1, length=2_000_000) == CONTENT[1:2_000_001]


def test_nothing_is_copied_for_no_bytes(source, tmp_path):
    assert copied(source, tmp_path, length=0) == b""


def test_a_source_that_is_too_short_is_named(source, tmp_path):
    with pytest.raises(StorageError) as caught:
        copied(source, tmp_path, offset=5, length=len(CONTENT))
    assert caught.value.message == (
        f"`{source}` ended at byte {len(CONTENT)} while bytes [5, {len(CONTENT) + 5}) were copied"
    )
    assert caught.value.hint == "the file was truncated while it was read"


def test_blocks_are_set_aside_without_a_trace_in_the_file(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"abc")
    with open(target, "r+b", buffering=0) as file:
        kernels.reserve(file.fileno(), 3, 1 << 20)
        assert target.read_bytes() == b"abc"
        kernels.reserve(file.fileno(), 3, 0)  # nothing, which the system refuses
    reading, writing = os.pipe()  # as it does this
    kernels.reserve(writing, 0, 1)
    os.close(reading)
    os.close(writing)


def test_a_full_disk_is_no_refusal(monkeypatch, source, tmp_path):
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with pytest.raises(StorageError) as caught:
        copied(source, tmp_path)
    assert caught.value.message == f"cannot copy `{source}` to `{tmp_path}/target`: No space left on device"
    assert caught.value.hint == "the disk is full; free some space, or write elsewhere"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"abc", b"def"], None),
        ([], None),
        ([b"abc", b"dxf"], 4),
        ([b"abc", b"defg"], 6),
        ([b"x"], 0),
    ],
)
def test_the_first_difference_is_found(tmp_path, pieces, expected):
    (tmp_path / "file").write_bytes(b"abcdef")
    assert first_difference(str(tmp_path / "file"), map(memoryview, pieces)) == expected
