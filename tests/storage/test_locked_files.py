"""Locks, of writers and of files that processes share: who waits says so, and the dead keep nobody out."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokenloom.errors import OutputBusyError
from tokenloom.progress import Task, Wait, reporting_to
from tokenloom.storage.objects import filling
from tokenloom.storage.publishing import OutputLock


class Watcher:
    """A reporter that keeps what is waited for."""

    seconds_between_looks = 0.001

    def __init__(self) -> None:
        self.waits: set[str] = set()
        self.has_seen = threading.Event()

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        if waits:
            self.waits |= {each.what for each in waits}
            self.has_seen.set()

    def end(self, task: Task, *, is_complete: bool) -> None:
        pass


def test_who_waits_for_a_file_that_another_makes_says_so(tmp_path: Path):
    path = str(tmp_path / "copy")
    watcher = Watcher()
    found = []

    def fill_too() -> None:
        with filling(path) as part:
            found.append(part)

    with reporting_to(watcher):
        with filling(path) as part:
            assert part is not None
            thread = threading.Thread(target=fill_too)
            thread.start()
            assert watcher.has_seen.wait(20)
        thread.join(20)
    assert watcher.waits == {f"`{path}`, which another process makes"}
    assert len(found) == 1


def test_one_writer_at_a_time(tmp_path):
    key = str(tmp_path / "data.idx")
    with OutputLock(key):
        with pytest.raises(OutputBusyError, match=rf"`.*data\.idx` is being written by process {os.getpid()} on "):
            OutputLock(key)
        with ThreadPoolExecutor() as pool, pytest.raises(OutputBusyError):
            pool.submit(OutputLock, key).result()
    with OutputLock(key):
        pass
    assert os.listdir(tmp_path) == []


def test_a_fork_does_not_let_go_of_the_lock(tmp_path):
    key = str(tmp_path / "data.idx")
    lock = OutputLock(key)
    child = os.fork()
    if child == 0:
        lock.release()
        del lock
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(OutputBusyError):
        OutputLock(key)
    lock.release()


def test_the_lock_of_a_dead_process_is_free(tmp_path):
    key = str(tmp_path / "data.idx")
    child = os.fork()
    if child == 0:
        lock = OutputLock(key)
        os._exit(0 if lock else 1)
    os.waitpid(child, 0)
    assert os.listdir(tmp_path) != []
    with OutputLock(key):
        pass
    assert os.listdir(tmp_path) == []


def test_a_writer_waits_a_moment_for_a_lock(tmp_path):
    key = str(tmp_path / "data.idx")
    reader = OutputLock(key)
    timer = threading.Timer(0.1, reader.release)
    timer.start()
    OutputLock(key).release()
    timer.join()
    assert os.listdir(tmp_path) == []
