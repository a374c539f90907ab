import errno
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from tokenloom.errors import ChangedFileError, StorageError
from tokenloom.storage import local
from tokenloom.storage.local import MappedFile, PositionalFile, copy_range, map_file
from tokenloom.storage.resolve import read_start, size_of
from tokenloom.storage.versions import open_regular, read_at_most, version_of

KINDS = [MappedFile, PositionalFile]


def num_open(folder):
    """Returns how many descriptors are of files below a folder: others may come and go with threads of other tests."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return count


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(100)))
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_give_the_bytes_asked_for(path, kind):
    source = kind(path)
    assert source.num_bytes == 100
    for offset, length in ((10, 3), (0, 100), (100, 0), (5, 0)):
        assert source.read(offset, length).tolist() == list(range(offset, offset + length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, -1), (99, 2), (101, 0), (0, 101), (2**70, 1)])
def test_reads_outside_the_file_are_refused(path, kind, offset, length):
    with pytest.raises(StorageError) as caught:
        kind(path).read(offset, length)
    assert caught.value.message == f"bytes [{offset}, {offset + length}) out of range: `{path}` has 100 bytes"


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_can_be_opened(tmp_path, kind):
    (tmp_path / "empty").touch()
    source = kind(str(tmp_path / "empty"))
    assert source.num_bytes == 0
    assert source.read(0, 0).tolist() == []
    with pytest.raises(StorageError, match="has 0 bytes"):
        source.read(0, 1)


@pytest.mark.parametrize("open_file", [*KINDS, map_file, size_of])
def test_a_missing_file_is_named(tmp_path, open_file):
    with pytest.raises(StorageError, match=r"cannot open `.*absent`: No such file or directory"):
        open_file(str(tmp_path / "absent"))


def test_a_file_truncated_while_open_is_reported(path):
    source = PositionalFile(path)
    source.read(0, 1)
    os.truncate(path, 50)
    with pytest.raises(StorageError) as caught:
        source.read(40, 20)
    hint = "hint: do not truncate the file while it is open"
    assert str(caught.value) == f"`{path}`: ended at byte 50 while reading bytes [40, 60)\n{hint}"
    assert source.read(40, 10).tolist() == list(range(40, 50))


@pytest.mark.parametrize("kind", [PositionalFile, MappedFile])
def test_a_file_replaced_before_its_first_read_is_reported(path, kind):
    source = kind(path)
    with open(f"{path}.new", "wb") as stream:
        stream.write(bytes(7))
    os.replace(f"{path}.new", path)
    with pytest.raises(StorageError) as caught:
        source.read(0, 5)
    message = f"`{path}` was replaced after it was opened: expected 100 bytes, found 7"
    assert str(caught.value) == f"{message}\nhint: open the dataset again"


def test_many_threads_share_a_small_pool_and_a_file_that_is_let_go_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_MOST_HANDLES", 2)
    for number in range(12):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 10)

    def read(number):
        file = PositionalFile(f"{tmp_path}/{number}.bin")
        return all(file.read(0, 10).tolist() == [number] * 10 for _ in range(300))

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(read, range(12)))
    assert num_open(tmp_path) <= 2
    files = [PositionalFile(f"{tmp_path}/{number}.bin") for number in range(2)]
    assert [file.read(0, 1).tolist() for file in files] == [[0], [1]]
    assert num_open(tmp_path) == 2
    del files[0]
    assert num_open(tmp_path) == 1


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


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_range_is_appended_by_any_way(monkeypatch, source, tmp_path, is_refused):
    def refuse(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if is_refused:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    told = []
    found = copied(source, tmp_path, offset=7, length=3_000_001, before=b"abc", advance=told.append)
    assert found == b"abc" + CONTENT[7 : 7 + 3_000_001]
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
    message = f"`{source}`: ended at byte {len(CONTENT)} while copying bytes [5, {len(CONTENT) + 5})"
    assert str(caught.value) == f"{message}\nhint: do not truncate the file while it is read"


def test_which_versions_mean_one_file(path):
    before = version_of(path)
    os.link(path, f"{path}.link")
    os.chmod(path, 0o400)
    assert before.is_same(version_of(path))
    assert before.is_same(version_of(f"{path}.link"))
    renumbered = before._replace(inode=before.inode + 1)  # by a file system of user space
    assert before.is_same(renumbered)
    assert not before.is_same(renumbered._replace(changed_ns=before.changed_ns + 1))
    elsewhere = before._replace(namespace="another boot")
    shutil.copy2(path, f"{path}.new")
    assert elsewhere.is_same(version_of(f"{path}.new"))
    os.utime(f"{path}.new", ns=(0, before.modified_ns + 1))
    assert not elsewhere.is_same(version_of(f"{path}.new"))


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


def test_bytes_overwritten_in_place_are_told_by_their_time(path):
    before = version_of(path)
    with open(path, "r+b") as stream:
        stream.write(b"others")
    os.utime(path, ns=(0, before.modified_ns + 1))
    with pytest.raises(ChangedFileError, match=r"expected modification at \d+ ns, found \d+ ns"):
        before.check(version_of(path), path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_what_is_no_file_is_named_and_nobody_waits(tmp_path, kind):
    path = "/dev/zero" if kind == "device" else str(tmp_path / "data.bin")
    with socket.socket(socket.AF_UNIX) as listener:
        {"pipe": os.mkfifo, "device": str, "folder": os.mkdir, "socket": listener.bind}[kind](path)
    for use in (MappedFile, PositionalFile, map_file, size_of, lambda path: read_start(path, 10)):
        with pytest.raises(StorageError, match=rf"cannot (open|read) `{path}`: "):
            use(path)


def test_a_pipe_that_takes_the_name_of_a_file_is_not_waited_for_and_leaves_no_descriptor_open(path, tmp_path):
    mapped, positional = MappedFile(path), PositionalFile(path)
    os.unlink(path)
    os.mkfifo(path)
    for source in (mapped, positional):
        with pytest.raises(StorageError, match=r"it is a pipe|was replaced after it was opened"):
            source.read(0, 1)
    for refuse in (open_regular, map_file):
        with pytest.raises(StorageError):
            refuse(path)
    assert num_open(tmp_path) == 0


@pytest.mark.parametrize("size", [0, 4096, 65537])
def test_a_file_is_read_up_to_so_many_bytes(tmp_path, size):
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "x").write_bytes(content)
    for most in (1, 4096, size, size + 1, 1 << 40):
        descriptor = open_regular(str(tmp_path / "x"))
        try:
            assert read_at_most(descriptor, most) == content[:most]
        finally:
            os.close(descriptor)
