"""Forked processes read object storage through a helper of their own."""

from __future__ import annotations

import os
import pickle

from tests.storage.remotes import BLOCK, SETTINGS, announce, read

from tokenloom import (
    MissingObjectError,
)
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import objects_below


def test_a_forked_child_reads_through_a_helper(bucket, remote, data, tmp_path):
    assert read(remote, 0, 10) == data[:10]
    result = tmp_path / "result"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            announce(remote, [(BLOCK, 100), (3 * BLOCK, 100)])
            parts = [read(remote, offset, 100) for offset in (BLOCK, 3 * BLOCK, 6 * BLOCK)]
            try:
                RemoteFile(bucket.url("none"), SETTINGS)
            except MissingObjectError as error:
                parts.append(error.message.encode())
            parts.append(objects_below(bucket.url("some/"), settings=SETTINGS))
            result.write_bytes(pickle.dumps(parts))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = [data[offset : offset + 100] for offset in (BLOCK, 3 * BLOCK, 6 * BLOCK)]
    assert pickle.loads(result.read_bytes()) == [
        *expected,
        f"no object `{bucket.url('none')}`".encode(),
        {bucket.url("some/object"): remote.version},
    ]
    assert read(remote, 5 * BLOCK, 10) == data[5 * BLOCK :][:10]  # the parent's own connections are as they were
