import io
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from tokenloom import ObjectStorageSettings, StorageError
from tokenloom.storage.objects import PendingObject, RemoteFile, local_copy, own_folder
from tokenloom.storage.resolve import exists, names_in, objects_below, open_stream, remove, size_of

SETTINGS = ObjectStorageSettings(block_bytes=1 << 12, deadline_seconds=20)


def copy_of(path: str) -> Path:
    return Path(local_copy(RemoteFile(path, SETTINGS)))


def test_a_copy_is_made_once_and_named_by_hashes(bucket, tmp_path):
    path = bucket.put("a/deep/key.idx", bytes(range(256)) * 40)
    copy = copy_of(path)
    assert copy.read_bytes() == bytes(range(256)) * 40
    assert copy.parent == tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "copies"
    assert set(copy.name) <= set("0123456789abcdef-")
    requests = bucket.proxy.counts["GET"]
    assert copy_of(path) == copy
    assert bucket.proxy.counts["GET"] == requests


def test_an_object_that_changed_is_copied_again_and_the_old_copy_goes(bucket):
    old = copy_of(bucket.put("key", b"old bytes"))
    new = copy_of(bucket.put("key", b"new bytes"))
    assert new.read_bytes() == b"new bytes"
    assert not old.exists()
    assert copy_of(bucket.put("other", b"other")).exists()
    assert new.exists()


@pytest.mark.slow
def test_an_object_appears_whole_when_it_is_published(bucket, tmp_path, rng):
    path = bucket.url("folder/new")
    data = rng.integers(0, 256, 17 << 20, dtype=np.uint8).tobytes()  # three parts
    with PendingObject(path, SETTINGS) as pending:
        pending.write(data)
        pending.sync()
        assert bucket.keys() == []
    assert bucket.keys() == ["folder/new"]
    assert bucket.get("folder/new") == data
    assert list((tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "uploads").iterdir()) == []


@pytest.mark.slow
def test_what_is_not_published_leaves_nothing(bucket, tmp_path):
    uploads = tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "uploads"
    pending = PendingObject(bucket.url("new"), SETTINGS)
    pending.write(b"abc")
    pending.discard()
    with pytest.raises(RuntimeError), PendingObject(bucket.url("new"), SETTINGS) as pending:
        raise RuntimeError
    with pytest.raises(StorageError), PendingObject("s3://no-such-bucket/new", SETTINGS) as pending:
        pending.write(b"abc")
    assert list(uploads.iterdir()) == []
    assert bucket.keys() == []


def test_objects_are_found_listed_and_removed(bucket):
    for key in ("a/x.bin", "a/x.idx", "a/deeper/y.bin", "top"):
        bucket.put(key, b"12345")
    assert names_in(bucket.url("a")) == names_in(bucket.url("a/")) == ["x.bin", "x.idx"]
    assert names_in(f"s3://{bucket.name}") == ["top"]
    assert (exists(bucket.url("top")), exists(bucket.url("a")), size_of(bucket.url("top"))) == (True, False, 5)
    found = objects_below(bucket.url("a/"))
    assert list(found) == [bucket.url("a/deeper/y.bin"), bucket.url("a/x.bin"), bucket.url("a/x.idx")]
    assert {path: RemoteFile(path).version for path in found} == found
    assert (len(objects_below(f"s3://{bucket.name}/")), objects_below(bucket.url("none/"))) == (4, {})
    remove(bucket.url("top"))
    remove(bucket.url("top"))
    assert not exists(bucket.url("top"))


def test_a_stream_reads_ahead_to_the_end(bucket, rng):
    data = rng.integers(0, 256, size=(9 << 20) + 5, dtype=np.uint8).tobytes()
    stream = open_stream(bucket.put("text", data), buffer_bytes=1 << 16)
    with stream:
        assert stream.peek(4)[:4] == data[:4]
        assert stream.read(100) == data[:100]
        assert stream.tell() == 100
        assert stream.read() == data[100:]
        assert stream.read(1) == b""
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(1 << 20)
    stream = open_stream(bucket.put("empty", b""), buffer_bytes=1 << 16)
    with stream:
        assert stream.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (5 << 20, (5 << 20) + 10), (100, 9 << 20), (0, None)])
def test_a_stream_may_begin_anywhere_and_go_on_behind_its_stop(bucket, rng, start, stop):
    data = rng.integers(0, 256, size=(9 << 20) + 5, dtype=np.uint8).tobytes()
    stream = open_stream(bucket.put("text", data), buffer_bytes=1 << 16, start=start, stop=stop)
    with stream:
        assert stream.tell() == start
        assert stream.read() == data[start:]


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    path = own_folder(f"{tmp_path}/a/b", hint="another")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    os.chmod(path, 0o755)  # others may read
    assert own_folder(path, hint="another") == path


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_one_that_others_may_write_into_is_refused(tmp_path, mode):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    with pytest.raises(StorageError) as caught:
        own_folder(f"{tmp_path}/own", hint="another")
    user, found = os.geteuid(), stat.filemode(stat.S_IFDIR | mode)
    expected = f"`{tmp_path}/own`: must be writable only by user {user}, got {found} of user {user}"
    assert (caught.value.message, caught.value.hint) == (expected, f"another, or run `chmod 700 {tmp_path}/own`")


def test_a_link_is_refused(tmp_path):
    (tmp_path / "own").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="lrwxrwxrwx of user"):
        own_folder(f"{tmp_path}/own", hint="another")
