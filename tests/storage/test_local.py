"""Local files, mapped and read by position."""

from __future__ import annotations

import os

import pytest

from tokenloom.errors import StorageError
from tokenloom.storage.local import MappedFile, PositionalFile, map_file
from tokenloom.storage.resolve import size_of

KINDS = [MappedFile, PositionalFile]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(100)))
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_give_the_bytes_asked_for(path, kind):
    source = kind(path)
    assert source.num_bytes == 100
    assert source.read(10, 3).tolist() == [10, 11, 12]
    assert source.read(0, 100).tolist() == list(range(100))
    assert source.read(100, 0).tolist() == []
    assert source.read(5, 0).tolist() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, -1), (99, 2), (101, 0), (0, 101), (2**70, 1)])
def test_reads_outside_the_file_are_refused(path, kind, offset, length):
    with pytest.raises(StorageError) as caught:
        kind(path).read(offset, length)
    expected = f"bytes [{offset}, {offset + length}) of `{path}` were asked for, but it has 100 bytes"
    assert caught.value.message == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_can_be_opened(tmp_path, kind):
    (tmp_path / "empty").touch()
    source = kind(str(tmp_path / "empty"))
    assert source.num_bytes == 0
    assert source.read(0, 0).tolist() == []
    with pytest.raises(StorageError, match="but it has 0 bytes"):
        source.read(0, 1)


@pytest.mark.parametrize("open_file", [*KINDS, map_file, size_of])
def test_a_missing_file_is_named(tmp_path, open_file):
    with pytest.raises(StorageError, match=r"cannot open `.*absent`: No such file or directory"):
        open_file(str(tmp_path / "absent"))


def test_a_view_outlives_its_source(path):
    view = MappedFile(path).read(10, 3)
    os.unlink(path)
    assert view.tolist() == [10, 11, 12]


def test_a_file_truncated_while_open_is_reported(path):
    source = PositionalFile(path)
    source.read(0, 1)
    os.truncate(path, 50)
    with pytest.raises(StorageError) as caught:
        source.read(40, 20)
    assert caught.value.message == f"`{path}` ended at byte 50 while bytes [40, 60) were read"
    assert caught.value.hint == "the file was truncated while it was open"
    assert source.read(40, 10).tolist() == list(range(40, 50))


@pytest.mark.parametrize("kind", [PositionalFile, MappedFile])
def test_a_file_replaced_before_its_first_read_is_reported(path, kind):
    source = kind(path)
    with open(f"{path}.new", "wb") as stream:
        stream.write(bytes(7))
    os.replace(f"{path}.new", path)
    with pytest.raises(StorageError) as caught:
        source.read(0, 5)
    assert caught.value.message == f"`{path}` was replaced after it was opened: expected 100 bytes, found a file of 7"
    assert caught.value.hint == "open the dataset again"
