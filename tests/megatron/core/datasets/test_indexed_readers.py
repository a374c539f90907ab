"""Readers of tokens in `tokenloom.megatron.core.datasets.indexed_dataset`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.indexed_dataset import (
    _FileBinReader,
    _MMapBinReader,
    _settings_of,
)
from tokenloom.storage.settings import ObjectStorageSettings

NUMBERS = np.arange(10, dtype=np.int32)


@pytest.fixture
def path(tmp_path):
    NUMBERS.tofile(tmp_path / "a.bin")
    return str(tmp_path / "a.bin")


@pytest.mark.parametrize("kind", [_MMapBinReader, _FileBinReader])
def test_readers_give_numbers(path, kind):
    reader = kind(path)
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]
    assert reader.read(dtype=np.dtype("int64"), count=np.int32(1), offset=np.int64(0)).tolist() == [1 << 32]
    assert reader.read(np.int32, -1, 32).tolist() == [8, 9]
    assert reader.read(np.int32, 0, 40).tolist() == []
    for count, offset in ((11, 0), (1, 40), (1, -4)):
        with pytest.raises(ValueError, match="were asked for, but it has 40"):
            reader.read(np.int32, count, offset)


def test_settings_come_from_those_of_the_reference():
    ours = ObjectStorageSettings(cache_path="/tmp/x")
    assert _settings_of(ours) is ours
    assert _settings_of(None) is None
    given = SimpleNamespace(path_to_idx_cache="/tmp/x", bin_chunk_nbytes=256 << 20)
    assert _settings_of(given) == ours
    given.bin_chunk_nbytes = 16 << 30
    assert _settings_of(given) == ObjectStorageSettings(cache_path="/tmp/x", block_bytes=16 << 30, cache_bytes=16 << 30)
    given.bin_chunk_nbytes = 0
    with pytest.raises(ConfigError):
        _settings_of(given)
