"""The blocks that processes of a node share: fetched once, bounded, held while needed, never believed unchecked."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tokenloom import CacheNotWrittenWarning, StorageError
from tokenloom.storage.block_cache import BlockCache

CHECKSUM = 4


def content(number: int, num_bytes: int = 1000) -> np.ndarray:
    return np.full(num_bytes, number, dtype=np.uint8)


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def blocks_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.block"))


def keep(cache: BlockCache, name: str, number: int = 7) -> bool:
    """Obtains a block and lets go of it; returns whether it was there."""
    block = cache.obtain(name, 1000, lambda: content(number))
    assert block is not None
    assert block.bytes.tolist() == [number] * 1000
    block.release()
    return block.was_cached


def test_a_block_is_fetched_once(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)
    assert [keep(cache, "a"), keep(cache, "a")] == [False, True]
    assert keep(BlockCache(str(tmp_path), budget_bytes=10_000), "a")


def test_the_budget_counts_all_files_and_the_oldest_goes_first(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=3 * (1000 + CHECKSUM))
    for name in ("a", "b", "c"):
        keep(cache, name)
        time.sleep(0.01)
    keep(cache, "a")  # used again
    keep(cache, "d")
    assert blocks_in(tmp_path) == ["a", "c", "d"]
    assert total_bytes(tmp_path) <= 3 * (1000 + CHECKSUM)


def test_nobody_counts_while_a_block_gets_its_name(tmp_path, monkeypatch):
    """A file that is renamed while the folder is listed would be counted under neither name."""
    cache, rename, names = BlockCache(str(tmp_path), budget_bytes=10_000), os.rename, []

    def named(source: str, target: str) -> None:
        with open(tmp_path / "lock", "rb+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names.append(Path(target).stem)
        rename(source, target)

    monkeypatch.setattr("tokenloom.storage.block_cache.os.rename", named)
    keep(cache, "a")
    assert names == blocks_in(tmp_path) == ["a"]


def test_a_block_without_further_use_goes_before_all_others(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=2 * (1000 + CHECKSUM))
    keep(cache, "a")
    cache.obtain("b", 1000, lambda: content(1)).release(finished=True)
    keep(cache, "c")
    assert blocks_in(tmp_path) == ["a", "c"]


def test_what_somebody_holds_is_not_evicted(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=2 * (1000 + CHECKSUM))
    held = [cache.obtain(name, 1000, lambda: content(1)) for name in ("a", "b")]
    assert cache.obtain("c", 1000, lambda: content(2)) is None
    assert blocks_in(tmp_path) == ["a", "b"]
    held[0].release()
    assert not keep(cache, "c", 2)
    assert blocks_in(tmp_path) == ["b", "c"]
    assert held[0].bytes[0] == 1  # evicted, and still readable


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


def _obtain_slowly(folder: str, start: float, results: multiprocessing.Queue) -> None:
    cache = BlockCache(folder, budget_bytes=100_000)
    fetched = []

    def fetch() -> np.ndarray:
        fetched.append(1)
        time.sleep(0.3)
        return content(3)

    time.sleep(max(0.0, start - time.time()))
    blocks = [cache.obtain(f"b{number}", 1000, fetch) for number in range(2)]
    results.put((len(fetched), [block.bytes.tolist() == [3] * 1000 for block in blocks]))


def test_processes_that_want_a_block_at_once_fetch_it_once(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    start = time.time() + 0.3
    processes = [context.Process(target=_obtain_slowly, args=(str(tmp_path), start, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=20) for _ in processes]
    for process in processes:
        process.join()
    assert sum(count for count, _ in found) == 2
    assert all(all(same) for _, same in found)


def test_a_process_that_dies_while_it_fills_a_block_blocks_nobody(tmp_path):
    program = (
        "import sys, time\n"
        "from tokenloom.storage.block_cache import BlockCache\n"
        "def fetch():\n"
        "    print('filling', flush=True)\n"
        "    time.sleep(60)\n"
        "BlockCache(sys.argv[1], budget_bytes=2000).obtain('a', 1000, fetch)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"filling\n"
        assert total_bytes(tmp_path) == 1000 + CHECKSUM  # its room is taken
        process.send_signal(signal.SIGKILL)
    cache = BlockCache(str(tmp_path), budget_bytes=2000)
    assert not keep(cache, "b")  # the orphan makes room
    assert not keep(cache, "a")


def test_a_forked_child_does_not_hold_what_its_parent_held(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=1000 + CHECKSUM)
    held = cache.obtain("a", 1000, lambda: content(1))
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        held.release()
        assert not keep(cache, "b")
    finally:
        os.close(write_end)
        os.waitpid(child, 0)


def test_a_folder_that_takes_no_blocks_costs_only_the_cache():
    program = (
        "import resource, signal, sys, tempfile, warnings\n"
        "import numpy as np\n"
        "from tokenloom.storage.block_cache import BlockCache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "cache = BlockCache(tempfile.mkdtemp(), budget_bytes=10_000)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    print([cache.obtain('a', 1000, lambda: np.zeros(1000, np.uint8)) for _ in range(2)])\n"
        "print(len(caught), caught[0].category.__name__, caught[0].message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[None, None]"
    assert second.startswith(f"1 {CacheNotWrittenWarning.__name__} blocks of object storage are not kept in ")
    assert second.endswith(": File too large; reads go on without the cache")
