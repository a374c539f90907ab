"""Copying between files in the kernel, and where the kernel cannot."""

from __future__ import annotations

import errno
import os

import pytest

from tokenloom.errors import StorageError
from tokenloom.storage.copying import copy_range

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


@pytest.mark.parametrize("refused", [[], ["copy_file_range"]])
def test_a_range_is_appended_by_any_way(monkeypatch, source, tmp_path, refused):
    for name in refused:
        monkeypatch.setattr(os, name, refusing(errno.EXDEV))
    told = []
    assert copied(source, tmp_path, offset=7, length=3_000_001, before=b"abc", advance=told.append) == (
        b"abc" + CONTENT[7 : 7 + 3_000_001]
    )
    assert sum(told) == 3_000_001


def test_a_refusal_in_the_middle_goes_on_where_it_stopped(monkeypatch, source, tmp_path):
    whole = os.copy_file_range
    answers = [100_000, 1]

    def partly(source, target, count, offset):
        if not answers:
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(source, target, min(count, answers.pop(0)), offset)

    monkeypatch.setattr(os, "copy_file_range", partly)
    assert copied(source, tmp_path, offset=1, length=2_000_000) == CONTENT[1:2_000_001]


def test_a_source_that_is_too_short_is_named(source, tmp_path):
    with pytest.raises(StorageError) as caught:
        copied(source, tmp_path, offset=5, length=len(CONTENT))
    assert caught.value.message == (
        f"`{source}` ended at byte {len(CONTENT)} while bytes [5, {len(CONTENT) + 5}) were copied"
    )
    assert caught.value.hint == "the file was truncated while it was read"
