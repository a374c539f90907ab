"""Files onto the disk in the background."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import textwrap

import pytest

from tokenloom.storage import syncing
from tokenloom.storage.syncing import finish_syncs, sync_later


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    return str(tmp_path / "file")


def test_when_files_are_on_the_disk_that_is_said(path):
    said = []
    sync_later([path], lambda: said.append(path))
    finish_syncs()
    assert said == [path]


def test_of_files_that_are_gone_or_others_nothing_is_said(path, monkeypatch, caplog):
    said = []
    sync_later([path, f"{path}-that-is-gone"], lambda: said.append(path))
    finish_syncs()

    def replaced(handle):
        os.replace(path, f"{path}-before")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))

    monkeypatch.setattr(syncing.os, "fsync", replaced)
    sync_later([path], lambda: said.append(path))
    finish_syncs()
    assert not said
    assert not caplog.records


def test_a_disk_that_fails_is_logged(path, monkeypatch, caplog):
    def fail(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(syncing.os, "fsync", fail)
    with caplog.at_level(logging.WARNING):
        sync_later([path], lambda: pytest.fail("it is not durable"))
        finish_syncs()
    assert "may be lost with the next loss of power: [Errno 5]" in caplog.text


def test_the_end_of_a_process_waits_and_a_child_has_a_thread_of_its_own(path):
    script = """
        import os, sys, time
        from tokenloom.storage.syncing import finish_syncs, sync_later
        sync_later([sys.argv[1]], lambda: None)
        child = os.fork()
        if child == 0:
            sync_later([sys.argv[1]], lambda: os.write(1, b"child "))
            finish_syncs()
            os._exit(0)
        os.waitpid(child, 0)
        sync_later([sys.argv[1]], lambda: (time.sleep(0.1), os.write(1, b"parent")))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), path]
    assert subprocess.run(command, check=True, capture_output=True, timeout=60).stdout == b"child parent"
