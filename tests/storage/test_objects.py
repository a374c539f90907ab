import pickle
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
from tokenloom.storage.objects import RemoteFile, close_storages, object_storage
from tokenloom.storage.statistics import forget_statistics


def test_a_single_read_fetches_what_it_returns(bucket, remote, data):
    assert remote.num_bytes == len(data)
    assert remote.mapped is None
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
    assert str(missing.value) == (
        f"no object `{bucket.url('some/other')}`\nhint: check the names of bucket and object, and the endpoint"
    )
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
