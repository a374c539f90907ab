"""Which file a name stands for, and what is no file at all."""

from __future__ import annotations

import os
import shutil
import socket

import numpy as np
import pytest
from tests.storage.descriptors import num_open

from tokenloom.errors import ChangedFileError, StorageError
from tokenloom.storage.local import MappedFile, PositionalFile, map_file
from tokenloom.storage.resolve import read_start, size_of
from tokenloom.storage.versions import open_regular, read_at_most, version_of


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"tokens")
    return str(path)


def set_back(path: str, modified_ns: int) -> None:
    os.utime(path, ns=(modified_ns, modified_ns))


def test_another_name_or_permission_makes_no_other_file(path):
    before = version_of(path)
    os.link(path, f"{path}.link")
    os.chmod(path, 0o400)
    assert before.is_same(version_of(path))
    assert before.is_same(version_of(f"{path}.link"))


def test_a_copy_with_the_same_size_and_time_is_another_file(path):
    before = version_of(path)
    shutil.copy2(path, f"{path}.new")
    os.replace(f"{path}.new", path)
    after = version_of(path)
    assert (after.num_bytes, after.modified_ns) == (before.num_bytes, before.modified_ns)
    assert not before.is_same(after)
    with pytest.raises(ChangedFileError) as caught:
        before.check(after, path)
    expected = f"`{path}` was replaced after it was opened: expected inode {before.inode}, found {after.inode}"
    assert (caught.value.message, caught.value.hint) == (expected, "open the dataset again")


def test_on_another_machine_inodes_mean_nothing(path):
    before = version_of(path)._replace(namespace="another boot")
    shutil.copy2(path, f"{path}.new")
    assert before.is_same(version_of(f"{path}.new"))
    set_back(f"{path}.new", before.modified_ns + 1)
    assert not before.is_same(version_of(f"{path}.new"))


def test_bytes_overwritten_in_place_are_told_by_their_time(path):
    before = version_of(path)
    with open(path, "r+b") as stream:
        stream.write(b"others")
    set_back(path, before.modified_ns + 1)
    with pytest.raises(ChangedFileError, match=r"changed last at \d+ ns, found one changed at \d+ ns"):
        before.check(version_of(path), path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_what_is_no_file_is_named_and_nobody_waits(tmp_path, kind):
    path = str(tmp_path / "data.bin")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = "/dev/zero"
    elif kind == "folder":
        os.mkdir(path)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
    for use in (MappedFile, PositionalFile, map_file, size_of, lambda path: read_start(path, 10)):
        with pytest.raises(StorageError, match=rf"cannot (open|read) `{path}`: "):
            use(path)


def test_a_pipe_that_takes_the_name_of_a_file_is_not_waited_for(path):
    mapped, positional = MappedFile(path), PositionalFile(path)
    os.unlink(path)
    os.mkfifo(path)
    for source in (mapped, positional):
        with pytest.raises(StorageError, match=r"found a pipe|was replaced after it was opened"):
            source.read(0, 1)


def test_refusing_a_file_leaves_no_descriptor_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for _ in range(10):
        for refuse in (open_regular, map_file):
            with pytest.raises(StorageError):
                refuse(str(tmp_path / "pipe"))
    assert num_open(tmp_path) == 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65535, 65536, 65537, 200_000])
def test_a_file_is_read_up_to_so_many_bytes(tmp_path, size):
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "x").write_bytes(content)
    for most in (1, 4096, size, size + 1, 1 << 40):
        descriptor = open_regular(str(tmp_path / "x"))
        try:
            assert read_at_most(descriptor, most) == content[:most]
        finally:
            os.close(descriptor)


def test_a_file_system_may_number_a_file_anew(path):
    before = version_of(path)
    assert before.is_same(before._replace(inode=before.inode + 1))
    assert not before.is_same(before._replace(inode=before.inode + 1, changed_ns=before.changed_ns + 1))
