"""Objects of a real store as byte sources: exact, sequential and announced reads, and everything that can go wrong."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.object_store.proxy import KINDS, Faults
from tests.object_store.server import aws_environment
from tests.storage.remotes import BLOCK, SETTINGS, announce, read
from tests.support import wait_until

from tokenloom import (
    AccessDeniedError,
    ConfigError,
    MissingObjectError,
    ObjectStorageSettings,
    ReplacedObjectError,
    StorageError,
    UnavailableError,
    storage_statistics,
)
from tokenloom.storage.copies import local_copy
from tokenloom.storage.object_storage import close_storages, object_storage
from tokenloom.storage.objects import RemoteFile


def test_a_single_read_fetches_what_it_returns(bucket, remote, data):
    assert remote.num_bytes == len(data)
    assert remote.mapped is None
    assert read(remote, 5 * BLOCK + 3, 1000) == data[5 * BLOCK + 3 :][:1000]
    assert read(remote, len(data) - 10, 10) == data[-10:]
    assert read(remote, 0, 0) == b""
    assert bucket.proxy.counts["body_bytes"] == 1010
    numbers = storage_statistics()[remote.path]
    assert (numbers.bytes_used, numbers.bytes_fetched, numbers.requests, numbers.retries) == (1010, 1010, 2, 0)
    with pytest.raises(StorageError, match=r"were asked for, but it has 163917 bytes"):
        remote.read(len(data) - 9, 10)


def test_reading_on_goes_by_blocks_and_finds_them_again(bucket, remote, data):
    for offset in range(0, 3 * BLOCK, 1024):
        assert read(remote, offset, 1024) == data[offset : offset + 1024]
    assert bucket.proxy.counts["GET"] == 4  # the first read alone, then three blocks
    for offset in range(0, 3 * BLOCK, 1024):
        assert read(pickle.loads(pickle.dumps(remote)), offset, 1024) == data[offset : offset + 1024]
    assert bucket.proxy.counts["GET"] == 4 + 48


def test_a_large_read_is_several_requests(bucket, remote, data):
    assert read(remote, 100, 5 * BLOCK) == data[100 : 100 + 5 * BLOCK]
    assert bucket.proxy.counts["GET"] == 5


def test_many_reads_are_made_at_once(bucket, remote, data):
    bucket.proxy.faults = Faults(until_at_once=16)
    offsets = [2000 * number for number in range(16)]
    parts = [part.tobytes() for part in remote.read_many(offsets, [10] * 16)]
    assert parts == [data[offset : offset + 10] for offset in offsets]


def test_announced_ranges_are_there_when_they_are_read(bucket, remote, data):
    ranges = [(offset, 500) for offset in range(0, 4 * BLOCK, 3000)]
    announce(remote, ranges)
    wait_until(lambda: bucket.proxy.counts["body_bytes"] == 500 * len(ranges))
    wait_until(lambda: not object_storage(SETTINGS).ranges.num_loading)  # what was sent has come
    requests = bucket.proxy.counts["GET"]
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["GET"] == requests == len(ranges)
    assert storage_statistics()[remote.path].hits == len(ranges)
    assert len(object_storage(SETTINGS).ranges) == 0


def test_announced_neighbours_come_in_one_request(bucket, remote, data):
    ranges = [(4000, 1000), (0, 2000), (2000, 2000), (5010, 1000)]
    announce(remote, ranges)
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["GET"] == 1
    assert bucket.proxy.counts["body_bytes"] == 6010


def test_announced_blocks_are_fetched_once_and_finished(bucket, remote, data):
    ranges = [(offset, 1024) for offset in range(0, 3 * BLOCK, 1024)]
    announce(remote, ranges, by_block=True)
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["GET"] == 3
    assert len(object_storage(SETTINGS).blocks) == 0


def test_more_announced_blocks_than_fit_come_in_their_turn(bucket, remote, data):
    settings = ObjectStorageSettings(cache_bytes=2 * (BLOCK + 4), block_bytes=BLOCK, deadline_seconds=20)
    remote = RemoteFile(remote.path, settings, remote.version)
    ranges = [(offset, 512) for offset in range(0, 9 * BLOCK, 512)]
    announce(remote, ranges, by_block=True)
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    folder = Path(object_storage(settings).folder) / "blocks"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= settings.cache_bytes
    assert bucket.proxy.counts["GET"] == 9


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_is_survived(bucket, remote, data, kind):
    bucket.proxy.faults = Faults(every={kind: 2}, slow_seconds=0.1)
    for offset in range(0, 8 * BLOCK, 2 * BLOCK):
        assert read(remote, offset, 1000) == data[offset : offset + 1000]
    numbers = storage_statistics()[remote.path]
    assert bucket.proxy.counts[kind] >= 2
    assert numbers.retries == (0 if kind == "slow_first_byte" else bucket.proxy.counts[kind])
    assert (numbers.bytes_used, numbers.bytes_fetched) == (4000, 4000)


def test_a_proxy_that_cuts_every_tenth_body_short(bucket, remote, data):
    bucket.proxy.faults = Faults(every={"truncate": 10})
    ranges = [(offset, 1500) for offset in range(0, 9 * BLOCK, 4000)]
    announce(remote, ranges)
    assert [read(remote, *each) for each in ranges] == [data[at : at + count] for at, count in ranges]
    assert bucket.proxy.counts["truncate"] >= 3


def test_an_endpoint_that_is_down_for_a_while(bucket, remote, data):
    read(remote, 0, 10)
    bucket.proxy.go_away()

    def come_back() -> None:
        wait_until(lambda: storage_statistics()[remote.path].retries >= 2)
        bucket.proxy.come_back()

    thread = threading.Thread(target=come_back)
    thread.start()
    assert read(remote, 1000, 100) == data[1000:1100]
    assert storage_statistics()[remote.path].retries >= 2
    thread.join()


def test_an_endpoint_that_stays_down_is_given_up(bucket, remote):
    settings = ObjectStorageSettings(block_bytes=BLOCK, deadline_seconds=0.5)
    bucket.proxy.go_away()
    with pytest.raises(UnavailableError) as info:
        RemoteFile(remote.path, settings, remote.version).read(0, 10)
    assert info.value.message.startswith(f"`{remote.path}` cannot be reached: ")
    assert "given up after" in info.value.message


def test_a_wait_without_an_answer_ends(bucket, remote, data):
    settings = ObjectStorageSettings(block_bytes=BLOCK, timeout_seconds=2, deadline_seconds=60)
    bucket.proxy.faults = Faults(every={"slow_first_byte": 2}, slow_seconds=60)
    remote = RemoteFile(remote.path, settings, remote.version)
    for offset in (0, 3 * BLOCK):
        assert read(remote, offset, 10) == data[offset : offset + 10]
    assert storage_statistics()[remote.path].retries == 1


@pytest.mark.parametrize("by_block", [False, True])
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


def test_an_object_that_became_shorter_or_went_away(bucket, remote, data):
    bucket.put("some/object", data[:100])
    with pytest.raises(ReplacedObjectError):
        remote.read(5 * BLOCK, 100)
    bucket.boto3.delete_object(Bucket=bucket.name, Key="some/object")
    with pytest.raises(MissingObjectError):
        remote.read(5 * BLOCK, 100)


def test_wrong_credentials_missing_buckets_and_missing_keys_are_told_at_once(bucket, remote, monkeypatch):
    started = time.monotonic()
    with pytest.raises(MissingObjectError) as missing:
        RemoteFile(bucket.url("some/other"), SETTINGS)
    assert str(missing.value) == (
        f"no object `{bucket.url('some/other')}`\nhint: check the names of bucket and object, and the endpoint"
    )
    with pytest.raises(MissingObjectError, match="no object `s3://no-such-bucket/key`"):
        RemoteFile("s3://no-such-bucket/key", SETTINGS)
    with pytest.raises(ConfigError, match=r"expected a key without empty, `\.` and `\.\.` segments"):
        RemoteFile("s3://b/../../x", SETTINGS)
    close_storages()
    for name, value in aws_environment(bucket.proxy.endpoint, secret="wrong").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(AccessDeniedError) as denied:
        RemoteFile(remote.path, SETTINGS)
    assert denied.value.message.startswith(f"access to `{remote.path}` was denied: ")
    assert "wrong" not in str(denied.value)
    assert time.monotonic() - started < 10


def test_a_cache_folder_that_is_someone_elses_or_a_link_is_refused(bucket, data, tmp_path):
    path = bucket.put("key", data)
    theirs, linked = tmp_path / "theirs", tmp_path / "linked"
    own = f"objects-{os.geteuid()}"
    (theirs / own).mkdir(parents=True)
    linked.mkdir()
    (linked / own).symlink_to(tmp_path)
    texts = {linked: "found a link"}
    if os.geteuid() == 0:
        os.chown(theirs / own, 12345, 12345)
        texts[theirs] = "found a folder of user 12345"
    for folder, text in texts.items():
        with pytest.raises(StorageError) as info:
            local_copy(RemoteFile(path, ObjectStorageSettings(cache_path=str(folder))))
        assert info.value.message == f"`{folder / own}`: expected a folder of user {os.geteuid()}, {text}"
        assert info.value.hint == "name another folder as the cache of object storage"


def test_a_cache_folder_that_cannot_be_made_is_told_when_it_is_needed(bucket, data, tmp_path):
    (tmp_path / "file").write_text("")
    remote = RemoteFile(bucket.put("key", data), ObjectStorageSettings(cache_path=str(tmp_path / "file")))
    assert read(remote, 5, 100) == data[5:105]
    with pytest.raises(StorageError, match=r"cannot create `.*file/objects-\d+`: Not a directory"):
        local_copy(remote)


def test_a_fresh_process_reads_the_version_that_was_pickled(bucket, remote, data, tmp_path):
    path = tmp_path / "pickled"
    path.write_bytes(pickle.dumps(remote))
    program = (
        "import pickle, sys\n"
        "remote = pickle.load(open(sys.argv[1], 'rb'))\n"
        "try:\n"
        "    sys.stdout.buffer.write(remote.read(100, 50).tobytes())\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )

    def run() -> bytes:
        return subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=True).stdout

    assert run() == data[100:150]
    bucket.put("some/object", data[::-1])
    assert run() == b"ReplacedObjectError\n"


def test_processes_of_a_node_share_blocks(bucket, remote, data, tmp_path):
    roomy = ObjectStorageSettings(block_bytes=BLOCK, deadline_seconds=20)
    path = tmp_path / "pickled"
    path.write_bytes(pickle.dumps(RemoteFile(remote.path, roomy, remote.version)))
    program = (
        "import pickle, sys\n"
        "import numpy as np\n"
        "remote = pickle.load(open(sys.argv[1], 'rb'))\n"
        "offsets = np.arange(0, 10 << 14, 1024)\n"
        "starts = offsets >> 14 << 14\n"
        "remote.will_need(offsets, np.full(len(offsets), 1024), blocks=(starts, starts + (1 << 14)))\n"
        "data = b''.join(remote.read(offset, 1024).tobytes() for offset in offsets.tolist())\n"
        "sys.stdout.buffer.write(data)\n"
    )
    bucket.proxy.faults = Faults(latency_seconds=0.1)
    command = [sys.executable, "-c", program, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert out == data[: 10 * BLOCK]
    assert bucket.proxy.counts["GET"] == 10
