"""Whole objects as local files: copies under safe names, uploads in one step, streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.object_store.proxy import Faults

from tokenloom import ObjectStorageSettings, StorageError
from tokenloom.storage.copies import PendingObject, local_copy
from tokenloom.storage.objects import RemoteFile

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


def test_a_copy_that_was_cut_is_made_again(bucket):
    copy = copy_of(bucket.put("key", b"some bytes"))
    copy.write_bytes(b"some")
    assert copy_of(bucket.url("key")).read_bytes() == b"some bytes"


def test_a_copy_with_other_bytes_is_made_again(bucket):
    copy = copy_of(bucket.put("key", b"some bytes"))
    written = copy.stat().st_mtime_ns
    copy.write_bytes(b"same sizes")
    os.utime(copy, ns=(written + 1, written + 1))  # where the clock of the filesystem ticks slowly, it may be the same
    assert copy_of(bucket.url("key")).read_bytes() == b"some bytes"


def test_a_copy_that_was_only_touched_is_read_and_kept(bucket):
    copy = copy_of(bucket.put("key", b"some bytes"))
    os.utime(copy, ns=(1, 1))
    requests = bucket.proxy.counts["GET"]
    for _ in range(2):
        assert copy_of(bucket.url("key")).stat().st_mtime_ns == 1
    assert bucket.proxy.counts["GET"] == requests


@pytest.mark.parametrize("left", [None, b"", b"no checksum"])
def test_a_copy_without_a_checksum_is_made_again(bucket, left):
    copy = copy_of(bucket.put("key", b"some bytes"))
    copy.write_bytes(b"same sizes")
    record = copy.with_name(f"{copy.name}.crc32")
    record.unlink() if left is None else record.write_bytes(left)
    assert copy_of(bucket.url("key")).read_bytes() == b"some bytes"


def test_an_empty_object_has_an_empty_copy(bucket):
    assert copy_of(bucket.put("key", b"")).read_bytes() == b""


def test_processes_share_one_download(bucket):
    path = bucket.put("key", bytes(3 << 12))
    bucket.proxy.faults = Faults(latency_seconds=0.3)
    program = (
        "import sys\n"
        "from tokenloom import ObjectStorageSettings\n"
        "from tokenloom.storage.copies import local_copy\n"
        "from tokenloom.storage.objects import RemoteFile\n"
        "print(local_copy(RemoteFile(sys.argv[1], ObjectStorageSettings(block_bytes=4096))))\n"
    )
    command = [sys.executable, "-c", program, path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate(timeout=60)[0] for process in processes}
    assert len(paths) == 1
    assert Path(paths.pop().strip()).read_bytes() == bytes(3 << 12)
    assert bucket.proxy.counts["GET"] == 3


def test_a_disk_without_room_for_a_copy_is_told(bucket):
    path = bucket.put("key", bytes(3 << 12))
    program = (
        "import resource, signal, sys\n"
        "from tokenloom import StorageError\n"
        "from tokenloom.storage.copies import local_copy\n"
        "from tokenloom.storage.objects import RemoteFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n"
        "    local_copy(RemoteFile(sys.argv[1]))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot write `")
    assert "File too large" in done.stdout


def test_an_object_appears_whole_when_it_is_published(bucket, tmp_path):
    path = bucket.url("folder/new")
    data = os.urandom(17 << 20)  # three parts
    with PendingObject(path, SETTINGS) as pending:
        pending.write(data)
        pending.sync()
        assert bucket.keys() == []
    assert bucket.keys() == ["folder/new"]
    assert bucket.get("folder/new") == data
    assert list((tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "uploads").iterdir()) == []


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
