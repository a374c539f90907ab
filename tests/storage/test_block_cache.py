import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom import StorageError
from tokenloom.storage.objects import BlockCache

CHECKSUM = 4


def content(number: int, num_bytes: int = 1000) -> np.ndarray:
    return np.full(num_bytes, number, dtype=np.uint8)


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def blocks_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.block"))


def keep(cache: BlockCache, name: str, number: int = 7) -> bool:
    fetched = []

    def fetch() -> np.ndarray:
        fetched.append(number)
        return content(number)

    data = cache.obtain(name, 1000, fetch)
    assert data.tolist() == [number] * 1000
    return not fetched


def test_a_block_is_fetched_once(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)
    assert [keep(cache, "a"), keep(cache, "a")] == [False, True]
    assert keep(BlockCache(str(tmp_path), budget_bytes=10_000), "a")


def test_the_budget_counts_all_files_and_the_oldest_goes_first(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=3 * (1000 + CHECKSUM))
    for seconds, name in enumerate(("a", "b", "c")):
        keep(cache, name)
        os.utime(tmp_path / f"{name}.block", (seconds, seconds))
    keep(cache, "a")  # used again
    keep(cache, "d")
    assert blocks_in(tmp_path) == ["a", "c", "d"]
    assert total_bytes(tmp_path) <= 3 * (1000 + CHECKSUM)


def test_an_evicted_block_stays_readable(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=1000 + CHECKSUM)
    fetched, mapped = (cache.obtain("a", 1000, lambda: content(1)) for _ in range(2))
    assert not keep(cache, "b", 2)
    assert blocks_in(tmp_path) == ["b"]
    assert fetched.tolist() == mapped.tolist() == [1] * 1000


def test_a_block_that_does_not_fit_is_not_kept(tmp_path):
    assert BlockCache(str(tmp_path), budget_bytes=1000).obtain("a", 1000, lambda: content(1)) is None
    assert total_bytes(tmp_path) == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_block_is_fetched_again(tmp_path, damage):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)
    keep(cache, "a")
    path = tmp_path / "a.block"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:700]), "empty": b""}[damage])
    assert not keep(cache, "a")
    assert keep(cache, "a")


def test_a_failed_fetch_leaves_nothing(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)

    def fail() -> np.ndarray:
        raise StorageError("gone")

    with pytest.raises(StorageError, match="gone"):
        cache.obtain("a", 1000, fail)
    assert blocks_in(tmp_path) == []
    assert total_bytes(tmp_path) == 0
    assert not keep(cache, "a")


def _obtain(folder: str, barrier: Any, results: Any) -> None:
    cache = BlockCache(folder, budget_bytes=100_000)
    fetched = []

    def fetch() -> np.ndarray:
        fetched.append(1)
        return content(3)

    barrier.wait()
    blocks = [cache.obtain(f"b{number}", 1000, fetch) for number in range(2)]
    results.put((len(fetched), [data.tolist() == [3] * 1000 for data in blocks]))


def test_processes_that_want_a_block_at_once_fetch_it_once(tmp_path):
    context = multiprocessing.get_context("fork")
    results, barrier = context.Queue(), context.Barrier(4)
    processes = [context.Process(target=_obtain, args=(str(tmp_path), barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=20) for _ in processes]
    for process in processes:
        process.join()
    assert sum(count for count, _ in found) == 2
    assert all(all(same) for _, same in found)


@pytest.mark.slow
def test_a_process_that_dies_while_it_fills_a_block_blocks_nobody(tmp_path):
    program = (
        "import sys, time\n"
        "from tokenloom.storage.objects import BlockCache\n"
        "def fetch():\n"
        "    print('filling', flush=True)\n"
        "    time.sleep(60)\n"
        "BlockCache(sys.argv[1], budget_bytes=2000).obtain('a', 1000, fetch)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"filling\n"
        process.send_signal(signal.SIGKILL)
    cache = BlockCache(str(tmp_path), budget_bytes=2000)
    assert not keep(cache, "b")
    assert not keep(cache, "a")  # in place of the part file
