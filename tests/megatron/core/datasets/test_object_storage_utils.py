"""`tokenloom.megatron.core.datasets.object_storage_utils` and its other names."""

from __future__ import annotations

import inspect

import pytest

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.megatron.core.datasets import object_storage_utils as ours

CONFIG = ours.ObjectStorageConfig("/cache")

CASES = [
    ("is_object_storage_path", "s3://b/k"),
    ("is_object_storage_path", "msc://p/k"),
    ("is_object_storage_path", "/local/s3://"),
    ("parse_s3_path", "s3://b/k/l"),
    ("parse_s3_path", "s3://b"),
    ("parse_s3_path", "s3://b/"),
    ("parse_s3_path", "msc://b/k"),
    ("parse_s3_path", "s3://b/s3://k"),
    ("get_object_storage_access", "s3://b/k"),
    ("get_object_storage_access", "msc://b/k"),
    ("get_index_cache_path", "s3://b/k.idx", CONFIG),
    ("get_index_cache_path", "msc://b/k.idx", CONFIG),
    ("get_index_cache_path", "/b/k.idx", CONFIG),
    ("dataset_exists", "/b/k", "/b/k.idx", "/b/k.bin"),
    ("cache_index_file", "/b/k.idx", "/c"),
]


def outcome(function, arguments):
    try:
        return function(*arguments)
    except (ValueError, AssertionError) as error:
        return tuple(kind for kind in (ValueError, AssertionError) if isinstance(error, kind))


@pytest.mark.peer
def test_paths_are_parsed_as_in_megatron():
    theirs = pytest.importorskip("megatron.core.datasets.object_storage_utils")
    for name, *arguments in CASES:
        expected, actual = (outcome(getattr(module, name), arguments) for module in (theirs, ours))
        if isinstance(expected, tuple) and expected and isinstance(expected[0], type):
            assert set(expected) <= set(actual), name
        else:
            assert actual == expected, name
        names = [[*inspect.signature(getattr(module, name)).parameters] for module in (ours, theirs)]
        assert names[0] == names[1]
    assert theirs.ObjectStorageConfig("/cache").__dict__ == CONFIG.__dict__ == {**vars(ours.S3Config("/cache"))}


def test_index_files_are_copied(bucket, tmp_path):
    bucket.put("data/train.idx", b"index")
    bucket.put("data/train.bin", b"tokens")
    address = f"s3://{bucket.name}/data/train"
    assert ours.dataset_exists(address, f"{address}.idx", f"{address}.bin")
    assert not ours.dataset_exists(address, f"{address}.idx", f"{address}.ban")
    local = ours.get_index_cache_path(f"{address}.idx", ours.S3Config(str(tmp_path)))
    ours.cache_index_file(f"{address}.idx", local)
    assert (tmp_path / bucket.name / "data" / "train.idx").read_bytes() == b"index"


def test_other_ranks_need_the_copy(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with pytest.raises(DatasetNotFoundError, match=r"rank 0 has not copied `s3://bucket/train.idx`"):
        ours.cache_index_file("s3://bucket/train.idx", str(tmp_path / "train.idx"))
    with pytest.raises(ConfigError, match=r"must start with `s3://` or `msc://`, got `/train\.idx`"):
        ours.cache_index_file("/train.idx", str(tmp_path / "train.idx"))
