"""Whole objects as local files: copies under safe names, uploads in one step, streams."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tokenloom import ObjectStorageSettings, StorageError
from tokenloom.storage.objects import PendingObject, RemoteFile, local_copy

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
