import io
import multiprocessing
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.object_store.proxy import KINDS, Faults
from tests.object_store.server import aws_environment
from tests.support import wait_until

from tokenloom import ConfigError, ObjectStorageSettings, StorageError, storage_statistics
from tokenloom.errors import AccessDeniedError, MissingObjectError, ReplacedObjectError, UnavailableError
from tokenloom.storage import objects as storages
from tokenloom.storage.addresses import STORES, ObjectAddress, ObjectVersion
from tokenloom.storage.objects import (
    BlockCache,
    Chunk,
    PendingObject,
    ReadAhead,
    RemoteFile,
    close_storages,
    local_copy,
    merge_ranges,
    object_storage,
    own_folder,
)
from tokenloom.storage.resolve import exists, names_in, objects_below, open_stream, remove, size_of
from tokenloom.storage.statistics import forget_statistics

BLOCK = 1 << 14
SETTINGS = ObjectStorageSettings(
    cache_bytes=8 * (BLOCK + 4), block_bytes=BLOCK, read_ahead_bytes=1 << 16, timeout_seconds=10, deadline_seconds=60
)


@pytest.fixture
def data(rng):
    return rng.bytes(10 * BLOCK + 77)


@pytest.fixture
def remote(bucket, data):
    file = RemoteFile(bucket.put("some/object", data), SETTINGS)
    forget_statistics()
    bucket.proxy.counts.clear()
    return file


def read(remote, offset, length):
    return remote.read(offset, length).tobytes()


def announce(remote, ranges, *, by_block=False):
    """Announces ranges; by block, in blocks of 16 ranges of 1024 bytes each."""
    offsets, lengths = np.array(ranges, dtype=np.int64).T
    starts = offsets // BLOCK * BLOCK
    blocks = (starts, np.minimum(starts + BLOCK, remote.num_bytes)) if by_block else None
    remote.will_need(offsets, lengths, blocks=blocks)


def test_a_single_read_fetches_what_it_returns(bucket, remote, data):
    assert (remote.num_bytes, remote.mapped) == (len(data), None)
    assert read(remote, 5 * BLOCK + 3, 1000) == data[5 * BLOCK + 3 :][:1000]
    assert read(remote, len(data) - 10, 10) == data[-10:]
    assert read(remote, 0, 0) == b""
    assert bucket.proxy.counts["body_bytes"] == 1010
    numbers = storage_statistics()[remote.path]
    assert (numbers.bytes_used, numbers.bytes_fetched, numbers.requests, numbers.retries) == (1010, 1010, 2, 0)
    with pytest.raises(StorageError, match=r"out of range: .* has 163917 bytes"):
        remote.read(len(data) - 9, 10)


def test_reading_on_goes_by_blocks_and_finds_them_again(bucket, remote, data):
    for offset in range(0, 3 * BLOCK, 1024):
        assert read(remote, offset, 1024) == data[offset : offset + 1024]
    assert bucket.proxy.counts["GET"] == 4  # the first read alone, then three blocks
    for offset in range(0, 3 * BLOCK, 1024):
        assert read(pickle.loads(pickle.dumps(remote)), offset, 1024) == data[offset : offset + 1024]
    assert bucket.proxy.counts["GET"] == 4 + 48


def test_announced_ranges_are_there_when_they_are_read(bucket, remote, data):
    ranges = [(offset, 500) for offset in range(0, 4 * BLOCK, 3000)]
    announce(remote, ranges)
    wait_until(lambda: bucket.proxy.counts["body_bytes"] == 500 * len(ranges))
    wait_until(lambda: not object_storage(SETTINGS).ahead.num_loading)  # what was sent has come
    requests = bucket.proxy.counts["GET"]
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["GET"] == requests == len(ranges)
    assert storage_statistics()[remote.path].hits == len(ranges)
    assert len(object_storage(SETTINGS).ahead) == 0


@pytest.mark.slow
def test_more_announced_blocks_than_fit_come_in_their_turn(bucket, remote, data):
    settings = ObjectStorageSettings(cache_bytes=2 * (BLOCK + 4), block_bytes=BLOCK, deadline_seconds=20)
    remote = RemoteFile(remote.path, settings, remote.version)
    ranges = [(offset, 512) for offset in range(0, 9 * BLOCK, 512)]
    announce(remote, ranges, by_block=True)
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["GET"] == 9
    for offset in range(0, 9 * BLOCK, BLOCK):  # one at a time: blocks that are filled at the same moment do not count
        announce(remote, [(offset, 512)], by_block=True)
        assert read(remote, offset, 512) == data[offset : offset + 512]
    folder = Path(object_storage(settings).folder) / "blocks"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= settings.cache_bytes


def test_every_kind_of_fault_is_survived(bucket, remote, data):
    for kind in KINDS:
        forget_statistics()
        bucket.proxy.faults = Faults(every={kind: 2}, slow_seconds=0.1)
        for offset in range(0, 6 * BLOCK, 2 * BLOCK):
            assert read(remote, offset, 1000) == data[offset : offset + 1000]
        numbers = storage_statistics()[remote.path]
        assert bucket.proxy.counts[kind] >= 1
        assert numbers.retries == (0 if kind == "slow_first_byte" else bucket.proxy.counts[kind])
        assert (numbers.bytes_used, numbers.bytes_fetched) == (3000, 3000)


def test_an_endpoint_that_stays_down_is_given_up(bucket, remote):
    settings = ObjectStorageSettings(block_bytes=BLOCK, deadline_seconds=0.5)
    bucket.proxy.go_away()
    with pytest.raises(UnavailableError) as info:
        RemoteFile(remote.path, settings, remote.version).read(0, 10)
    assert info.value.message.startswith(f"cannot reach `{remote.path}`: ")
    assert "given up after" in info.value.message


@pytest.mark.slow
def test_a_wait_without_an_answer_ends(bucket, remote, data):
    settings = ObjectStorageSettings(block_bytes=BLOCK, timeout_seconds=5, deadline_seconds=60)
    bucket.proxy.faults = Faults(every={"slow_first_byte": 2}, slow_seconds=60)
    remote = RemoteFile(remote.path, settings, remote.version)
    for offset in (0, 3 * BLOCK):
        assert read(remote, offset, 10) == data[offset : offset + 10]
    assert storage_statistics()[remote.path].retries == 1


@pytest.mark.parametrize("by_block", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_replaced_object_is_an_error_and_never_a_mixture(bucket, remote, data, by_block):
    announced = bucket.proxy.counts["body_bytes"] + 2 * (BLOCK if by_block else 100)
    announce(remote, [(0, 100), (BLOCK, 100)], by_block=by_block)
    assert read(remote, 0, 100) == data[:100]
    wait_until(lambda: bucket.proxy.counts["body_bytes"] == announced)
    bucket.put("some/object", data[::-1])
    assert read(remote, BLOCK, 100) == data[BLOCK : BLOCK + 100]  # fetched before
    with pytest.raises(ReplacedObjectError) as info:
        remote.read(5 * BLOCK, 100)
    assert str(info.value) == f"`{remote.path}` was replaced after it was opened\nhint: open the dataset again"
    assert read(RemoteFile(remote.path, SETTINGS), 5 * BLOCK, 100) == data[::-1][5 * BLOCK :][:100]


def test_wrong_credentials_missing_buckets_and_missing_keys_are_told_at_once(bucket, remote, monkeypatch):
    with pytest.raises(MissingObjectError) as missing:
        RemoteFile(bucket.url("some/other"), SETTINGS)
    hint = "hint: check the names of bucket and object, and the endpoint"
    assert str(missing.value) == f"no object `{bucket.url('some/other')}`\n{hint}"
    with pytest.raises(MissingObjectError, match="no object `s3://no-such-bucket/key`"):
        RemoteFile("s3://no-such-bucket/key", SETTINGS)
    with pytest.raises(ConfigError, match=r"the key must not have empty, `\.` or `\.\.` segments"):
        RemoteFile("s3://b/../../x", SETTINGS)
    close_storages()
    for name, value in aws_environment(bucket.proxy.endpoint, secret="wrong").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(AccessDeniedError) as denied:
        RemoteFile(remote.path, SETTINGS)
    assert denied.value.message.startswith(f"access to `{remote.path}` was denied: ")
    assert "wrong" not in str(denied.value)


CHECKSUM = 4


def content(number: int) -> np.ndarray:
    return np.full(1000, number, dtype=np.uint8)


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


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_block_is_fetched_once_and_again_when_it_is_damaged(tmp_path, damage):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)
    assert [keep(cache, "a"), keep(cache, "a")] == [False, True]
    assert keep(BlockCache(str(tmp_path), budget_bytes=10_000), "a")
    path = tmp_path / "a.block"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:700]), "empty": b""}[damage])
    assert not keep(cache, "a")
    assert keep(cache, "a")


def test_a_failed_fetch_leaves_nothing_and_a_block_that_does_not_fit_is_not_kept(tmp_path):
    cache = BlockCache(str(tmp_path), budget_bytes=10_000)

    def fail() -> np.ndarray:
        raise StorageError("gone")

    with pytest.raises(StorageError, match="gone"):
        cache.obtain("a", 1000, fail)
    assert BlockCache(str(tmp_path), budget_bytes=1000).obtain("a", 1000, lambda: content(1)) is None
    assert (blocks_in(tmp_path), total_bytes(tmp_path)) == ([], 0)
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


class Source:
    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def chunk(self, number: int, *, num_bytes: int = 10) -> Chunk[int]:
        def load() -> int:
            self.gate.wait()
            self.loaded.append(number)
            if number < 0:
                raise OSError(f"no {number}")
            return number

        return Chunk(num_bytes, load)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def ahead() -> Iterator[ReadAhead[int]]:
    with ThreadPoolExecutor(2) as executor:
        yield ReadAhead(executor.submit, budget_bytes=30, concurrency=2)


def announce_to(ahead: ReadAhead[int], source: Source, *numbers: int) -> None:
    ahead.announce([(number, number) for number in numbers], source.chunk)


def use(ahead: ReadAhead[int], key: object) -> int:
    (found,), _ = ahead.use([key])
    return found


def settle(ahead: ReadAhead[int], source: Source, count: int) -> None:
    """Waits until so many have been loaded, and are here."""
    wait_until(lambda: len(source.loaded) >= count and not ahead.num_loading)


def test_what_was_announced_is_there_before_it_is_asked_for(ahead, source):
    announce_to(ahead, source, 1, 2)
    settle(ahead, source, 2)
    assert ahead.use([1]) == ([1], False)
    assert ahead.expects(2)
    assert not ahead.expects(1)
    assert ahead.use([3]) == ([], False)


def test_a_budget_bounds_what_is_here_and_each_last_use_makes_room(ahead, source):
    announce_to(ahead, source, 1, 2, 3, 4, 5)
    settle(ahead, source, 3)
    assert (sorted(source.loaded), len(ahead)) == ([1, 2, 3], 3)
    use(ahead, 1)
    settle(ahead, source, 4)
    assert len(ahead) == 3
    assert sorted(source.loaded) == [1, 2, 3, 4]


def test_a_chunk_stays_until_its_last_announced_use(ahead, source):
    announce_to(ahead, source, 1, 1)
    assert use(ahead, 1) == 1
    assert len(ahead) == 1
    announce_to(ahead, source, 1)
    use(ahead, 1)
    use(ahead, 1)
    assert len(ahead) == 0
    assert source.loaded == [1]
    assert ahead.use([1]) == ([], False)


def test_a_chunk_serves_all_reads_that_name_it(ahead, source):
    ahead.announce([(key, "shared") for key in "abc"], lambda _: source.chunk(7))
    ahead.announce([("d", "shared")], lambda _: source.chunk(7))
    assert [use(ahead, key) for key in "dbc"] == [7, 7, 7]
    assert len(ahead) == 1
    assert use(ahead, "a") == 7
    assert (source.loaded, len(ahead)) == ([7], 0)
    announce_to(ahead, source, 8)
    ahead.announce([("e", "shared")], lambda _: source.chunk(9))
    assert use(ahead, "e") == 9  # a new chunk, the old one is gone


def test_reads_are_taken_as_far_as_they_are_here_and_nothing_is_let_go(ahead, source):
    announce_to(ahead, source, 1, 2, 3, 1, 2)
    settle(ahead, source, 3)
    assert ahead.use([0, 1, 2, 3, 1, 2], 1) == ([1, 2, 3], False)  # the last use of 3
    assert len(ahead) == 2
    source.gate.clear()
    announce_to(ahead, source, 4)
    assert ahead.use([2, 4]) == ([2], False)
    assert ahead.use([1, 4]) == ([1], False)
    source.gate.set()
    assert use(ahead, 4) == 4
    assert len(ahead) == 0


def test_a_failure_is_left_to_who_asks_for_it_first(ahead, source):
    announce_to(ahead, source, 1, -1, 1)
    settle(ahead, source, 2)
    assert ahead.use([1, -1]) == ([1], False)
    with pytest.raises(OSError, match="no -1"):
        ahead.use([-1, 1])
    assert use(ahead, 1) == 1
    assert len(ahead) == 0


def test_announcements_that_nobody_takes_up_make_room_for_later_ones(ahead, source):
    announce_to(ahead, source, 1, 2, 3)  # of a loader that was left
    settle(ahead, source, 3)
    for number in range(10, 40):
        announce_to(ahead, source, number)
    for number in range(10, 40):
        assert use(ahead, number) == number
    announce_to(ahead, source, 50, 51, 52)
    settle(ahead, source, 36)
    assert len(ahead) == 3
    assert not ahead.expects(1)
    assert [use(ahead, number) for number in (50, 51, 52)] == [50, 51, 52]


def test_requests_hold_ranges_and_small_gaps():
    offsets, lengths = np.array([0, 900, 104, 2000, 1000]), np.array([100, 50, 96, 10, 8])
    expected = [(0, 200, [0, 2]), (900, 950, [1]), (1000, 1008, [4]), (2000, 2010, [3])]
    assert merge_ranges(offsets, lengths, most_bytes=1 << 20) == expected
    found = merge_ranges(np.array([0, 0, 50]), np.array([100, 100, 100]), most_bytes=120)
    assert found == [(0, 100, [0, 1]), (50, 150, [2])]


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 400)), min_size=1, max_size=60), st.integers(400, 4000))
def test_each_range_lies_in_one_request_and_little_else_does(ranges, most_bytes):
    offsets = np.array([offset for offset, _ in ranges])
    lengths = np.array([length for _, length in ranges])
    requests = merge_ranges(offsets, lengths, most_bytes=most_bytes)
    assert sorted(number for _, _, members in requests for number in members) == list(range(len(ranges)))
    for start, stop, members in requests:
        assert stop - start <= most_bytes
        used = np.zeros(stop - start, dtype=bool)
        for number in members:
            assert start <= offsets[number]
            assert offsets[number] + lengths[number] <= stop
            used[offsets[number] - start : offsets[number] + lengths[number] - start] = True
        assert (~used).sum() * 20 <= used.sum()


COPYING = ObjectStorageSettings(block_bytes=1 << 12, deadline_seconds=20)


def copy_of(path: str) -> Path:
    return Path(local_copy(RemoteFile(path, COPYING)))


def test_a_copy_is_made_once_named_by_hashes_and_goes_when_the_object_has_changed(bucket, tmp_path):
    old = copy_of(bucket.put("a/deep/key.idx", b"old bytes"))
    assert old.read_bytes() == b"old bytes"
    assert old.parent == tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "copies"
    assert set(old.name) <= set("0123456789abcdef-")
    requests = bucket.proxy.counts["GET"]
    assert copy_of(bucket.url("a/deep/key.idx")) == old
    assert bucket.proxy.counts["GET"] == requests
    new = copy_of(bucket.put("a/deep/key.idx", b"new bytes"))
    assert new.read_bytes() == b"new bytes"
    assert not old.exists()
    assert copy_of(bucket.put("other", b"other")).exists()
    assert new.exists()


@pytest.mark.slow
def test_an_object_appears_whole_when_it_is_published_and_leaves_nothing_if_it_is_not(bucket, tmp_path, rng):
    uploads = tmp_path / "object-cache" / f"objects-{os.geteuid()}" / "uploads"
    data = rng.bytes(17 << 20)  # three parts
    with PendingObject(bucket.url("folder/whole"), COPYING) as pending:
        pending.write(data)
        pending.sync()
        assert bucket.keys() == []
    assert bucket.get("folder/whole") == data
    pending = PendingObject(bucket.url("new"), COPYING)
    pending.write(b"abc")
    pending.discard()
    with pytest.raises(RuntimeError), PendingObject(bucket.url("new"), COPYING) as pending:
        raise RuntimeError
    with pytest.raises(StorageError), PendingObject("s3://no-such-bucket/new", COPYING) as pending:
        pending.write(b"abc")
    assert list(uploads.iterdir()) == []
    assert bucket.keys() == ["folder/whole"]


def test_objects_are_found_listed_and_removed(bucket):
    for key in ("a/x.bin", "a/x.idx", "a/deeper/y.bin", "top"):
        bucket.put(key, b"12345")
    assert names_in(bucket.url("a")) == names_in(bucket.url("a/")) == ["x.bin", "x.idx"]
    assert names_in(f"s3://{bucket.name}") == ["top"]
    assert (exists(bucket.url("top")), exists(bucket.url("a")), size_of(bucket.url("top"))) == (True, False, 5)
    found = objects_below(bucket.url("a/"))
    assert list(found) == [bucket.url("a/deeper/y.bin"), bucket.url("a/x.bin"), bucket.url("a/x.idx")]
    assert {path: RemoteFile(path).version for path in found} == found
    assert (len(objects_below(f"s3://{bucket.name}/")), objects_below(bucket.url("none/"))) == (4, {})
    remove(bucket.url("top"))
    remove(bucket.url("top"))
    assert not exists(bucket.url("top"))


def test_a_stream_reads_ahead_to_the_end(bucket, rng):
    data = rng.bytes((9 << 20) + 5)
    with open_stream(bucket.put("text", data), buffer_bytes=1 << 16) as stream:
        assert stream.peek(4)[:4] == data[:4]
        assert stream.read(100) == data[:100]
        assert stream.tell() == 100
        assert stream.read() == data[100:]
        assert stream.read(1) == b""
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(1 << 20)
    with open_stream(bucket.put("empty", b""), buffer_bytes=1 << 16) as stream:
        assert stream.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (5 << 20, (5 << 20) + 10), (100, 9 << 20), (0, None)])
def test_a_stream_may_begin_anywhere_and_go_on_behind_its_stop(bucket, rng, start, stop):
    data = rng.bytes((9 << 20) + 5)
    with open_stream(bucket.put("text", data), buffer_bytes=1 << 16, start=start, stop=stop) as stream:
        assert stream.tell() == start
        assert stream.read() == data[start:]


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    path = own_folder(f"{tmp_path}/a/b", hint="another")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    os.chmod(path, 0o755)  # others may read
    assert own_folder(path, hint="another") == path


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_one_that_others_may_write_into_or_a_link_is_refused(tmp_path, mode):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    with pytest.raises(StorageError) as caught:
        own_folder(f"{tmp_path}/own", hint="another")
    user, found = os.geteuid(), stat.filemode(stat.S_IFDIR | mode)
    expected = f"`{tmp_path}/own`: must be a folder writable only by user {user}, got {found} of user {user}"
    assert (caught.value.message, caught.value.hint) == (expected, f"another, or run `chmod 700 {tmp_path}/own`")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="lrwxrwxrwx of user"):
        own_folder(f"{tmp_path}/link", hint="another")


VERSION = ObjectVersion(num_bytes=4, etag=None)


class Flaky:
    errors: list[StorageError]
    is_away: Callable[[], bool]

    def __init__(self, address: ObjectAddress, settings: ObjectStorageSettings) -> None:
        pass

    def version(self, address: ObjectAddress) -> ObjectVersion:
        self.read(address, 0, 4, VERSION)
        return VERSION

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> bytes:
        if Flaky.errors:
            raise Flaky.errors.pop(0)
        if Flaky.is_away():
            message = "no answer"
            raise UnavailableError(message)
        return b"done"


@pytest.fixture
def flaky_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(STORES, "flaky", f"{__name__}:Flaky")
    Flaky.errors, Flaky.is_away = [], lambda: False
    forget_statistics()
    yield
    close_storages()


def read_flaky(**settings: float | None) -> bytes:
    return RemoteFile("flaky://store/key", ObjectStorageSettings(**settings), VERSION).read(0, 4).tobytes()


def num_retries() -> int:
    return storage_statistics()["flaky://store/key"].retries


@pytest.mark.usefixtures("flaky_store")
def test_what_may_pass_is_tried_again_and_nothing_else() -> None:
    Flaky.errors = [MissingObjectError("a"), AccessDeniedError("b")]
    with pytest.raises(MissingObjectError, match=r"^a$"):
        read_flaky()
    with pytest.raises(AccessDeniedError, match=r"^b$"):
        RemoteFile("flaky://store/key")
    assert num_retries() == 0
    Flaky.errors = [UnavailableError("a"), AccessDeniedError("b"), UnavailableError("c")]
    assert read_flaky(deadline_seconds=5) == b"done"
    assert num_retries() == 3


class Clock(threading.Event):
    """Tells how long was waited for it, and nothing else takes time."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    perf_counter = monotonic

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, flaky_store: None) -> Clock:
    made = Clock()
    monkeypatch.setattr(storages, "time", made)
    monkeypatch.setattr(storages, "ENDING", made)
    return made


def test_the_deadline_ends_it_and_the_error_tells_how_often(clock: Clock) -> None:
    Flaky.is_away = lambda: True
    with pytest.raises(UnavailableError) as info:
        read_flaky(deadline_seconds=0.4)
    assert 100.0 < clock.seconds <= 100.4
    expected = f"no answer; given up after {num_retries() + 1} attempts in {clock.seconds - 100:.1f} s"
    assert info.value.message == expected
    assert info.value.hint == "check the endpoint and the network"


def test_the_default_deadline_outlives_an_outage_of_twenty_seconds(clock: Clock) -> None:
    back = clock.seconds + 20
    Flaky.is_away = lambda: clock.seconds < back
    assert read_flaky() == b"done"
    assert clock.seconds <= back + 5  # the longest pause


@pytest.mark.usefixtures("flaky_store")
@pytest.mark.parametrize("retries", [0, 3])
def test_retries_are_counted_where_they_are_limited(retries: int) -> None:
    Flaky.is_away = lambda: True
    with pytest.raises(UnavailableError, match=rf"no answer; given up after {retries + 1} attempts"):
        read_flaky(retries=retries)
    assert num_retries() == retries


@pytest.mark.slow
def test_credentials_of_a_profile_are_found_through_boto3(bucket, data, tmp_path, monkeypatch):
    path = bucket.put("key", data)
    environment = aws_environment(bucket.proxy.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[training]\naws_access_key_id = {environment['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {environment['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert read(RemoteFile(path, SETTINGS), 100, 50) == data[100:150]
