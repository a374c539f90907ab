"""One writer of a group of files at a time, and none that a dead one keeps out."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tokenloom.errors import OutputBusyError
from tokenloom.storage.output_lock import OutputLock


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


def test_a_writer_waits_for_who_only_puts_things_in_order(tmp_path):
    key = str(tmp_path / "data.idx")
    reader = OutputLock(key, is_brief=True)
    with pytest.raises(OutputBusyError, match="briefly"):
        OutputLock(key, is_brief=True)
    timer = threading.Timer(0.1, reader.release)
    timer.start()
    OutputLock(key).release()
    timer.join()
    assert os.listdir(tmp_path) == []
