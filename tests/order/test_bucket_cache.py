"""Indices in a bucket: uploaded by the builder and downloaded by readers, never partially."""

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.object_store.fixtures import Bucket
from tests.support import contents, make_config, write_corpus

from tokenloom import BlendedMegatronDatasetBuilder, ConfigError, GPTDataset, IndexCacheError, ObjectStorageSettings
from tokenloom.errors import AccessDeniedError, UnavailableError
from tokenloom.order import cache
from tokenloom.order.array_store import NotBuiltError, forbid_building
from tokenloom.storage.objects import close_storages
from tokenloom.storage.settings import CACHE_VARIABLE
from tokenloom.storage.stores import ObstoreClient

STORAGE = ObjectStorageSettings(deadline_seconds=60, timeout_seconds=20)
SIZES = [30, None, None]


@pytest.fixture
def data(bucket: Bucket, tmp_path: Path, rng: np.random.Generator) -> list[str]:
    prefixes = [
        write_corpus(tmp_path / name, [rng.integers(0, 90, size=rng.integers(8, 60)) for _ in range(40)])
        for name in ("books", "web")
    ]
    return [bucket.put_pair(prefix, f"data/{Path(prefix).name}") for prefix in prefixes]


@pytest.fixture
def another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns a function that switches to an empty cache folder, like on another node."""
    count = iter(range(100))

    def move() -> None:
        close_storages()
        cache._known.clear()
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / f"node-{next(count)}"))

    return move


def build(data: list[str], cache: str | None, **changes: Any) -> Any:
    settings = {"blend": (data, [1.0, 2.0]), "split": "1,0,0", "path_to_cache": cache, "object_storage": STORAGE}
    settings["sequence_length"] = 32
    config = make_config(None, **{**settings, **changes})
    return BlendedMegatronDatasetBuilder(GPTDataset, SIZES, lambda: True, config).build()


def key_of(bucket: Bucket, ending: str) -> str:
    (key,) = filter(lambda key: key.endswith(ending), bucket.keys())
    return key


def tokens(splits: Any) -> list[Any]:
    """Returns a few samples of each split, because every read from the bucket is a request."""
    return [split.batch(range(3))["tokens"].tolist() for split in splits if split is not None]


def test_who_builds_publishes_and_readers_build_nothing(bucket, data, tmp_path, another_node, caplog):
    local = tokens(build(data, str(tmp_path / "indices")))
    with caplog.at_level(logging.WARNING):
        assert tokens(build(data, bucket.url("indices"))) == local
    assert f"`{bucket.url('indices')}` has no entry " in caplog.text
    published = {key.removeprefix("indices/"): bucket.get(key) for key in sorted(bucket.keys()) if "indices/" in key}
    assert published == contents(tmp_path / "indices")
    another_node()
    caplog.clear()
    with caplog.at_level(logging.WARNING), forbid_building():
        splits = build(data, f"{bucket.url('indices')}/")
        assert tokens(splits) == local
    assert not caplog.records
    assert pickle.loads(pickle.dumps(splits[0])).sample(1)["tokens"].tolist() == local[0][1]
    assert tokens(build(data, bucket.url("indices"), defer_npy_index_mmap=True)) == local


def test_half_an_entry_counts_as_absent_and_a_changed_one_is_built_again(bucket, data, another_node, caplog):
    expected = tokens(build(data[:1], bucket.url("indices"), blend=(data[:1], None)))
    description = key_of(bucket, "train-description.txt")
    text = bucket.get(description)
    bucket.boto3.delete_object(Bucket=bucket.name, Key=description)
    another_node()
    with forbid_building(), pytest.raises(NotBuiltError):
        build(data[:1], bucket.url("indices"), blend=(data[:1], None))
    bucket.put(description, text)
    shuffled = key_of(bucket, "train-shuffle_index.npy")
    array = bucket.get(shuffled)
    bucket.put(shuffled, array[:-4] + array[-8:-4])
    another_node()
    with caplog.at_level(logging.WARNING):
        assert tokens(build(data[:1], bucket.url("indices"), blend=(data[:1], None))) == expected
    assert "rebuilding an invalid cached index" in caplog.text
    assert bucket.get(shuffled) == array


def test_who_may_not_write_is_told_what_is_missing(bucket, data, monkeypatch):
    def refuse(*_: Any) -> None:
        message = "access was denied"
        raise AccessDeniedError(message)

    monkeypatch.setattr(ObstoreClient, "upload", refuse)
    message = r"has no entry [0-9a-f]+-GPTDataset-train, and the entry cannot be written"
    with pytest.raises(IndexCacheError, match=message) as info:
        build(data, bucket.url("indices"))
    assert "tokenloom prepare-cache" in str(info.value.hint)


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_no_reason_to_build(bucket, data, another_node):
    changes = {"blend": (data[:1], None), "object_storage": ObjectStorageSettings(deadline_seconds=3)}
    build(data, bucket.url("indices"), **changes)
    splits = build(data, bucket.url("indices"), **changes)
    bucket.proxy.go_away()
    with pytest.raises(UnavailableError):
        splits[0].sample(0)
    bucket.proxy.come_back()
    another_node()
    key = key_of(bucket, "train-sample_index.npy")
    bucket.boto3.delete_object(Bucket=bucket.name, Key=key)
    splits = build(data, bucket.url("indices"), **changes, fast_cache_load=True)
    with pytest.raises(IndexCacheError, match=r"no file `s3://.*train-sample_index.npy`"):
        splits[0].sample(0)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("https://host/indices", "`path_to_cache` must be a local folder or a folder in a bucket, got"),
        ("s3:/bucket/indices", "`path_to_cache`: must be a local folder, got the URL 's3:/bucket/indices'"),
        ("", "`path_to_cache`: must be a local folder, got ''"),
    ],
)
def test_other_addresses_are_refused(path, said):
    with pytest.raises(ConfigError, match=said):
        make_config(None, path_to_cache=path)
