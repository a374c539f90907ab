import errno
import os
import stat
from pathlib import Path

import pytest

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import PendingFile, storage_errors


def names_in(folder):
    return sorted(os.listdir(folder))


def test_nothing_has_the_name_before_publish(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"abc")
    pending.sync()
    assert not (tmp_path / "data.bin").exists()
    assert names_in(tmp_path) == [os.path.basename(pending.readable_path)]
    assert Path(pending.readable_path).read_bytes() == b"abc"
    pending.publish()
    assert names_in(tmp_path) == ["data.bin"]
    assert (tmp_path / "data.bin").read_bytes() == b"abc"


def test_publish_replaces_the_file_that_had_the_name(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")
    with PendingFile(tmp_path / "data.bin") as pending:
        pending.write(b"new")
        assert (tmp_path / "data.bin").read_bytes() == b"old"
    assert (tmp_path / "data.bin").read_bytes() == b"new"


def test_a_published_file_has_ordinary_permissions(tmp_path):
    with PendingFile(tmp_path / "data.bin"):
        pass
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "data.bin").stat().st_mode) == 0o666 & ~mask


def test_discard_leaves_nothing_and_may_be_repeated(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"abc")
    pending.discard()
    pending.discard()
    assert names_in(tmp_path) == []


def test_an_exception_leaves_the_old_file_alone(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")
    with pytest.raises(TypeError), PendingFile(tmp_path / "data.bin") as pending:
        pending.write("no bytes")
    assert names_in(tmp_path) == ["data.bin"]
    assert (tmp_path / "data.bin").read_bytes() == b"old"


@pytest.mark.parametrize("end", ["publish", "discard"])
def test_writing_after_the_end_is_an_error(tmp_path, end):
    pending = PendingFile(tmp_path / "data.bin")
    getattr(pending, end)()
    with pytest.raises(StorageError, match=r"data\.bin`: was already published or discarded"):
        pending.write(b"abc")
    with pytest.raises(StorageError, match="already published or discarded"):
        pending.publish()


def test_two_writers_of_one_path_do_not_meet_and_the_last_wins_whole(tmp_path):
    first, second = PendingFile(tmp_path / "data.bin"), PendingFile(tmp_path / "data.bin")
    first.write(b"first")
    second.write(b"2")
    second.publish()
    assert (tmp_path / "data.bin").read_bytes() == b"2"
    first.publish()
    assert (tmp_path / "data.bin").read_bytes() == b"first"
    assert names_in(tmp_path) == ["data.bin"]


def in_fork(action):
    """Runs `action` in a forked child that ends as Python programs end; returns the exit status."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_neither_removes_the_file_nor_writes_buffered_bytes_twice(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"hello")  # still in the buffer, of which the fork gets a copy
    assert in_fork(pending.__del__) == 0
    pending.write(b" world")
    pending.publish()
    assert (tmp_path / "data.bin").read_bytes() == b"hello world"


def test_a_forked_child_cannot_write_or_publish(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")

    def child():
        for use in (lambda: pending.write(b"child"), pending.publish):
            with pytest.raises(StorageError, match=rf"process {os.getppid()} opened it"):
                use()

    assert in_fork(child) == 0
    assert not (tmp_path / "data.bin").exists()
    pending.discard()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot create `.*absent/data\.bin`: No such file or directory"):
        PendingFile(tmp_path / "absent" / "data.bin")


def test_a_folder_in_the_way_is_reported_and_nothing_is_left(tmp_path):
    (tmp_path / "data.bin").mkdir()
    with (
        pytest.raises(StorageError, match=r"cannot publish `.*data\.bin`: Is a directory"),
        PendingFile(tmp_path / "data.bin") as pending,
    ):
        pending.write(b"abc")
    assert names_in(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_hint(code):
    with pytest.raises(StorageError) as caught, storage_errors("write", "x.bin"):
        raise OSError(code, os.strerror(code))
    assert caught.value.message == f"cannot write `x.bin`: {os.strerror(code)}"
    assert caught.value.hint == "free space on the disk, or write to another one"
    assert isinstance(caught.value.__cause__, OSError)
