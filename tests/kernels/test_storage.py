"""Mapped files truncated while mapped raise an error instead of killing the process; other signals pass through."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenloom.errors import ChangedFileError
from tokenloom.kernels.storage import Watch, map_extents, map_file

PAGE = os.sysconf("SC_PAGESIZE")


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def numbers(count: int) -> bytes:
    return (np.arange(count, dtype=np.uint32) % 251 + 1).astype(np.uint8).tobytes()


def read_all(path: str) -> tuple[np.ndarray, Watch]:
    data, _ = map_file(path)
    return data, Watch([data])


@pytest.mark.parametrize("size", [1, 100, PAGE, PAGE + 1, 3 * PAGE + 77])
def test_every_truncation_is_found_and_none_is_invented(tmp_path, size):
    content = numbers(size)
    for left in sorted({0, 1, size // 2, size - 1, *(page for page in range(0, size, PAGE))} - {size}):
        path = write(tmp_path / f"{left}", content)
        data, watch = read_all(path)
        assert data.tobytes() == content
        watch.check()
        os.truncate(path, left)
        read = data.tobytes()
        assert read[:left] == content[:left]
        with pytest.raises(ChangedFileError) as caught:
            watch.check()
        expected = f"`{path}` was truncated while it was mapped: expected {size} bytes, found {left}"
        assert caught.value.message == expected
        assert caught.value.hint is not None


def test_zeros_that_were_there_before_are_no_damage(tmp_path):
    path = write(tmp_path / "data", numbers(100) + bytes(PAGE))
    data, watch = read_all(path)
    before = data.tobytes()
    os.truncate(path, PAGE + 50)
    assert data.tobytes() == before
    watch.check()  # the data read before the truncation are valid
    os.truncate(path, PAGE)
    with pytest.raises(ChangedFileError):
        watch.check()


def test_other_bytes_at_the_end_are_found(tmp_path):
    path = write(tmp_path / "data", numbers(3000))
    _, watch = read_all(path)
    with open(path, "r+b") as stream:
        stream.write(numbers(3000)[::-1])
    with pytest.raises(ChangedFileError, match="was overwritten while it was mapped"):
        watch.check()


def test_damage_stays_until_the_file_is_mapped_anew(tmp_path):
    path = write(tmp_path / "data", numbers(2 * PAGE))
    data, watch = read_all(path)
    os.truncate(path, 0)
    assert int(data[PAGE]) == 0
    (tmp_path / "data").write_bytes(numbers(2 * PAGE))
    for _ in range(3):
        with pytest.raises(ChangedFileError):
            watch.check()
    again, fresh = read_all(path)
    assert again.tobytes() == numbers(2 * PAGE)
    fresh.check()


def test_one_of_many_files_is_named_and_the_others_stay(tmp_path):
    paths = [write(tmp_path / str(number), numbers(100 + number)) for number in range(5)]
    starts = np.arange(5, dtype=np.int64) * 65536
    sizes = np.array([100 + number for number in range(5)], dtype=np.int64)
    data, found = map_extents(paths, np.stack([starts, sizes]), num_bytes=int(starts[-1] + sizes[-1]))
    assert found[:, 1].tolist() == [os.stat(path).st_ino for path in paths]
    watch = Watch([], data)
    watch.check_tokens(0, 100)
    os.truncate(paths[3], 50)
    os.truncate(paths[1], 0)
    assert int(data[65536]) == 0
    watch.check_tokens(0, 100)
    watch.check_tokens(2 * 65536, 102)
    for number in (1, 3):  # one page that faulted, and one page not read before
        with pytest.raises(ChangedFileError, match=rf"`{paths[number]}` was truncated while it was mapped"):
            watch.check_tokens(number * 65536 + 3, 5)


def test_threads_may_fault_while_others_map_and_unmap(tmp_path):
    paths = [write(tmp_path / str(number), numbers(8 * PAGE)) for number in range(8)]
    stop, wrong = threading.Event(), []

    def churn():
        while not stop.is_set():
            mapped = [map_file(path)[0] for path in paths[4:]]
            wrong.extend(array[0] for array in mapped if array[0] != 1)

    def fault(path: str):
        for _ in range(50):
            data, watch = read_all(path)
            os.truncate(path, PAGE)
            data.sum()
            try:
                watch.check()
                wrong.append(path)
            except ChangedFileError:
                pass
            del data, watch
            with open(path, "wb") as stream:
                stream.write(numbers(8 * PAGE))

    with ThreadPoolExecutor(6) as executor:
        churning = [executor.submit(churn) for _ in range(2)]
        try:
            list(executor.map(fault, paths[:4]))
        finally:
            stop.set()
        assert [each.result() for each in churning] == [None] * 2
    assert wrong == []


def test_a_fork_finds_damage_by_itself(tmp_path):
    path = write(tmp_path / "data", numbers(4 * PAGE))
    data, watch = read_all(path)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # as torch does in its workers
        watch.check()
        os.truncate(path, 10)
        data.sum()
        try:
            watch.check()
        except ChangedFileError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert int(data.sum()) == sum(numbers(10))
    with pytest.raises(ChangedFileError):
        watch.check()


FOREIGN = """
import ctypes, faulthandler, mmap, os, signal, sys
from tokenloom.kernels.storage import Watch, map_file
path, how = sys.argv[1:]
if how == "faulthandler before": faulthandler.enable()
data, _ = map_file(path)
watch = Watch([data])
if how == "faulthandler after":
    faulthandler.enable()
    again, _ = map_file(path)
if how == "python handler":
    signal.signal(signal.SIGBUS, lambda *_: None)
    again, _ = map_file(path)
with open(path, "rb") as file:
    foreign = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(path, 0)
assert int(data[0]) == 0
print("survived", flush=True)
if how == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
print(foreign[0], flush=True)
"""


@pytest.mark.parametrize("how", ["default", "faulthandler before", "faulthandler after", "python handler", "sent"])
def test_a_foreign_fault_still_kills(tmp_path, how):
    path = write(tmp_path / "data", numbers(2 * PAGE))
    command = [sys.executable, "-c", FOREIGN, path, how]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.returncode) == ("survived\n", -signal.SIGBUS)
    assert result.stderr.count("Fatal Python error: Bus error") == (1 if "faulthandler" in how else 0)


def test_nothing_is_installed_before_a_file_is_mapped(tmp_path):
    path = write(tmp_path / "data", numbers(10))
    code = (
        "import sys; import tokenloom; from tokenloom.kernels.storage import map_file\n"
        "caught = lambda: int(next(line.split()[1] for line in open('/proc/self/status') if 'SigCgt' in line), 16)\n"
        "print(caught() >> 6 & 1); map_file(sys.argv[1]); print(caught() >> 6 & 1)"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["0", "1"]


def test_gaps_between_files_are_no_tokens(tmp_path):
    paths = [write(tmp_path / str(number), numbers(100)) for number in range(2)]
    places = np.array([[0, 65536], [100, 100]], dtype=np.int64)
    data, _ = map_extents(paths, places, num_bytes=65636)
    watch = Watch([], data)
    for offset, length in [(100, 1), (99, 2), (200, 10), (65535, 2)]:
        with pytest.raises(IndexError, match=rf"bytes \[{offset}, {offset + length}\) lie in no file"):
            watch.check_tokens(offset, length)


def test_a_replaced_file_keeps_its_content(tmp_path):
    path = write(tmp_path / "data", numbers(2 * PAGE))
    data, watch = read_all(path)
    write(tmp_path / "new", b"short")
    os.replace(tmp_path / "new", path)
    assert data.tobytes() == numbers(2 * PAGE)
    watch.check()
