"""The pool of open files."""

from __future__ import annotations

import os
import threading

import pytest
from tests.storage.descriptors import num_open

from tokenloom.storage.local import HandlePool, MappedFile, PositionalFile


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / f"{number}.bin" for number in range(12)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number]) * 10)
    return [str(path) for path in made]


def test_many_threads_share_a_small_pool(paths):
    pool = HandlePool(2)
    failures = []

    def read(path: str, number: int) -> None:
        for _ in range(300):
            with pool.lease(path, path) as handle:
                if os.pread(handle, 10, 0) != bytes([number]) * 10:
                    failures.append(number)

    threads = [threading.Thread(target=read, args=(path, number)) for number, path in enumerate(paths)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_forked_child_can_lease_though_a_thread_held_the_lock(paths):
    pool = HandlePool(1)
    with pool._lock:
        child = os.fork()
        if child == 0:
            with pool.lease(paths[0], paths[0]) as handle:
                os._exit(0 if os.pread(handle, 10, 0) == bytes(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_finalizer_that_runs_while_the_lock_is_held_waits_for_nothing(tmp_path, paths):
    pool = HandlePool(12)
    for path in paths[:2]:
        with pool.lease(path, path):
            pass
    with pool._lock:  # as when the garbage is collected in the middle of a lease
        pool.forget(paths[0])
        assert num_open(tmp_path) == 2
    with pool.lease(paths[1], paths[1], pytest.fail):  # open already, so nothing is checked
        assert num_open(tmp_path) == 1


def test_many_files_are_read_with_few_descriptors(tmp_path):
    files = []
    for number in range(600):
        path = tmp_path / str(number)
        path.write_bytes(number.to_bytes(4, "little"))
        files.append(PositionalFile(str(path)) if number % 2 else MappedFile(str(path)))
    for number, file in enumerate(files):
        assert int.from_bytes(file.read(0, 4).tobytes(), "little") == number
    assert num_open(tmp_path) <= 256
