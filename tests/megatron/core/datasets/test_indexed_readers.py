"""`tokenloom.megatron.core.datasets.indexed_readers`."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import numpy as np
import pytest

from tokenloom.errors import ChangedFileError, ConfigError, StorageError
from tokenloom.megatron.core.datasets import indexed_readers
from tokenloom.megatron.core.datasets.indexed_readers import (
    FileBinReader,
    MMapBinReader,
    ReaderSource,
    settings_of,
)
from tokenloom.storage.local import MappedFile, PositionalFile
from tokenloom.storage.settings import ObjectStorageSettings

NUMBERS = np.arange(10, dtype=np.int32)


@pytest.fixture
def path(tmp_path):
    NUMBERS.tofile(tmp_path / "a.bin")
    return str(tmp_path / "a.bin")


@pytest.mark.parametrize("kind", [MMapBinReader, FileBinReader])
def test_readers_give_numbers(path, kind):
    reader = kind(path)
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]
    assert reader.read(dtype=np.dtype("int64"), count=np.int32(1), offset=np.int64(0)).tolist() == [1 << 32]
    assert reader.read(np.int32, -1, 32).tolist() == [8, 9]
    assert reader.read(np.int32, 0, 40).tolist() == []
    for count, offset in ((11, 0), (1, 40), (1, -4)):
        with pytest.raises(ValueError, match="were asked for, but it has 40"):
            reader.read(np.int32, count, offset)


def fail(monkeypatch, times, error):
    """Lets reads by position fail some times."""
    read, failures = PositionalFile.read, [error] * times

    def reading(self, offset, length):
        if failures:
            raise StorageError("cannot read") from failures.pop()
        return read(self, offset, length)

    monkeypatch.setattr(PositionalFile, "read", reading)


def test_reads_that_fail_are_tried_again(path, monkeypatch, caplog):
    waited = []
    monkeypatch.setattr(indexed_readers, "time", SimpleNamespace(sleep=waited.append))
    reader = FileBinReader(path)
    fail(monkeypatch, 3, OSError(errno.EIO, "a disk"))
    assert reader.read(np.int32, 1, 4).tolist() == [1]
    assert waited == [10, 20, 40]
    assert "attempt 3 of 4 failed, the next is in 40 s: cannot read" in caplog.text
    fail(monkeypatch, 2, OSError(errno.EIO, "a disk"))
    with pytest.raises(StorageError):
        FileBinReader(path, num_max_retries=1, sleep_duration_start=0.5).read(np.int32, 1, 4)
    assert waited == [10, 20, 40, 0.5]


def test_what_no_time_mends_is_said_at_once(path, tmp_path):
    reader = FileBinReader(path)
    (tmp_path / "b").write_bytes(bytes(40))
    (tmp_path / "b").replace(path)
    with pytest.raises(ChangedFileError):
        reader.read(np.int32, 1, 0)


def test_settings_come_from_those_of_the_reference():
    ours = ObjectStorageSettings(cache_path="/tmp/x")
    assert settings_of(ours) is ours
    assert settings_of(None) is None
    given = SimpleNamespace(path_to_idx_cache="/tmp/x", bin_chunk_nbytes=256 << 20)
    assert settings_of(given) == ours
    given.bin_chunk_nbytes = 16 << 30
    assert settings_of(given) == ObjectStorageSettings(cache_path="/tmp/x", block_bytes=16 << 30, cache_bytes=16 << 30)
    given.bin_chunk_nbytes = 0
    with pytest.raises(ConfigError):
        settings_of(given)
    with pytest.raises(ConfigError, match="expected an `ObjectStorageConfig`, found str"):
        settings_of("/tmp/x")


def test_bytes_of_a_foreign_reader_may_cut_its_numbers(path):
    class Foreign:
        def read(self, dtype, count, offset):
            return NUMBERS[offset // 4 :][:count]

    source = ReaderSource(Foreign(), MappedFile(path), np.dtype(np.int32))
    everything = NUMBERS.tobytes()
    for offset, length in ((0, 40), (3, 6), (5, 1), (8, 0)):
        assert source.read(offset, length).tobytes() == everything[offset : offset + length]
    assert [part.tobytes() for part in source.read_many([0, 4], [4, 8])] == [everything[:4], everything[4:12]]
    assert (source.num_bytes, source.mapped) == (40, None)
