"""Conversations in object storage: their samples equal samples of local files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, settings, write_conversations
from tests.object_store.proxy import KINDS, Faults
from tests.support import assert_same

from tokenloom import (
    BlendedMegatronDatasetBuilder,
    DatasetFormatError,
    IndexedDataset,
    ObjectStorageSettings,
    SFTDataset,
    SFTDatasetConfig,
    VarlenDataset,
    VarlenDatasetConfig,
    build_dataloader,
    loader_statistics,
    verify_dataset,
)
from tokenloom.indexed.roles import read_roles

STORAGE = ObjectStorageSettings(block_bytes=1 << 13, concurrency=8, timeout_seconds=10, deadline_seconds=60)


@pytest.fixture
def prefix(tmp_path, rng):
    def turn(longest: int) -> list[int]:
        return rng.integers(8, 60000, size=rng.integers(1, longest)).tolist()

    talks = [
        conversation((PROMPT, turn(60)), (ANSWER, turn(90)), (PROMPT, turn(40)), (ANSWER, turn(200))) for _ in range(90)
    ]
    return write_conversations(tmp_path / "chat", talks, tokenizer_sha256="ab" * 32)


def build(cls, config_class, prefix: str, tmp_path, *, num_samples: int | None = None):
    changes = {"path_to_cache": str(tmp_path / "indices"), "object_storage": STORAGE, "sequence_length": 512}
    config = config_class(**settings(prefix, **changes))
    return BlendedMegatronDatasetBuilder(cls, [num_samples, None, None], lambda: True, config).build()[0]


@pytest.mark.parametrize(("num_workers", "context"), [(0, None), pytest.param(2, "spawn", marks=pytest.mark.slow)])
def test_packed_batches_are_those_of_local_files(bucket, prefix, tmp_path, num_workers, context):
    url = bucket.put_pair(prefix, "data/chat")
    here = build(SFTDataset, SFTDatasetConfig, prefix, tmp_path, num_samples=40)
    there = build(SFTDataset, SFTDatasetConfig, url, tmp_path, num_samples=40)
    bucket.proxy.faults = Faults(shares=dict.fromkeys(KINDS, 0.01), slow_seconds=0.1)
    batches = np.arange(40).reshape(10, 4).tolist()
    loader = build_dataloader(there, batches, num_workers=num_workers, multiprocessing_context=context)
    found = [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]
    assert_same(found, list(build_dataloader(here, batches)))
    statistics = loader_statistics(loader)[f"{url}.bin"]
    assert statistics.hits > 0
    assert there.ledger() == here.ledger()
    assert there.spans(3).documents.tolist() == here.spans(3).documents.tolist()


def test_single_conversations_are_those_of_local_files(bucket, prefix, tmp_path):
    url = bucket.put_pair(prefix, "data/chat")
    here = build(VarlenDataset, VarlenDatasetConfig, prefix, tmp_path)
    there = build(VarlenDataset, VarlenDatasetConfig, url, tmp_path)
    assert there.remote_paths == [f"{url}.bin"]
    there.will_need(range(8))
    assert_same([there.sample(k) for k in range(20)], [here.sample(k) for k in range(20)])
    assert there.lengths().tolist() == here.lengths().tolist()


def test_roles_of_a_bucket_are_checked(bucket, prefix):
    url = bucket.put_pair(prefix, "data/chat")
    assert verify_dataset(url).ok
    assert read_roles(IndexedDataset(url)).identity() == read_roles(IndexedDataset(prefix)).identity()
    bucket.put("data/chat.roles.npy", Path(f"{prefix}.roles.npy").read_bytes()[:-1])
    with pytest.raises(DatasetFormatError, match=r"`s3://.*/data/chat\.roles\.npy`: expected \d+ bytes"):
        read_roles(IndexedDataset(url))
