"""Prefetch from object storage: announced batches, and the samples of local files despite faults."""

import dataclasses
import threading
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, settings, write_conversations
from tests.object_store.fixtures import Bucket
from tests.object_store.proxy import KINDS, Faults
from tests.support import assert_same, forking_from, make_config, make_dataset, wait_until, write_corpus

from tokenloom import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    BlockShuffle,
    DatasetFormatError,
    GPTDataset,
    IndexedDataset,
    MegatronPretrainingSampler,
    ObjectStorageSettings,
    SFTDataset,
    SFTDatasetConfig,
    ThreadLoader,
    VarlenDataset,
    VarlenDatasetConfig,
    build_dataloader,
    loader_statistics,
    storage_statistics,
    verify_dataset,
)
from tokenloom.indexed.roles import read_roles
from tokenloom.loading.read_ahead import AnnouncingSampler
from tokenloom.storage.objects import object_storage
from tokenloom.storage.statistics import forget_statistics

BLOCK = 1 << 13
SHUFFLE = BlockShuffle(block_bytes=BLOCK, window_blocks=2)
STORAGE = ObjectStorageSettings(block_bytes=BLOCK, concurrency=8, timeout_seconds=10, deadline_seconds=60)
SETTINGS = dataclasses.replace(STORAGE, cache_bytes=16 * (BLOCK + 4), read_ahead_bytes=1 << 17)


@given(st.integers(0, 40), st.integers(0, 5), st.integers(1, 6) | st.none())
def test_each_batch_is_announced_once_to_its_worker_in_time(num_batches, num_workers, num_ahead):
    batches = [[number, None] for number in range(num_batches)]
    sampler = AnnouncingSampler(batches, num_workers=num_workers, num_ahead=num_ahead)
    assert len(sampler) == num_batches
    workers = max(1, num_workers)
    known: list[list[list[int | None]]] = [[] for _ in range(workers)]
    for number, batch in enumerate(sampler):
        worker = number % workers
        assert list(batch) == batches[number]
        known[worker].extend(map(list, batch.upcoming))
        assert known[worker].pop(0) == batches[number]
        assert len(known[worker]) <= (num_ahead or 512)
    assert not any(known)


@pytest.fixture
def prefixes(tmp_path, rng):
    made = []
    for name, count in (("books", 40), ("web", 30)):
        documents = [rng.integers(0, 60000, size=rng.integers(1, 1500)) for _ in range(count)]
        made.append(write_corpus(tmp_path / name, documents))
    return made


def build(prefixes: list[str], tmp_path, *, num_samples: int | None = None, **changes):
    weights = [0.7, 0.3] if len(prefixes) > 1 else None
    settings = {"blend": (prefixes, weights), "split": "1,0,0", "path_to_cache": str(tmp_path / "indices")}
    config = make_config(None, sequence_length=512, object_storage=SETTINGS, **settings, **changes)
    return BlendedMegatronDatasetBuilder(GPTDataset, [num_samples, None, None], lambda: True, config).build()[0]


def batches_of(dataset, *, consumed: int = 0, **options):
    sampler = MegatronPretrainingSampler(len(dataset), consumed, 4, 0, 1)
    loader = build_dataloader(dataset, sampler, **options)
    batches = [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]
    return batches, loader_statistics(loader)


@pytest.fixture
def own_forkserver(bucket):
    with forking_from("torch"):
        yield


@pytest.mark.usefixtures("own_forkserver")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(
    ("num_workers", "context", "shuffle"),
    [
        (0, None, None),
        (0, None, SHUFFLE),
        pytest.param(1, None, SHUFFLE, marks=pytest.mark.slow),
        pytest.param(4, "forkserver", None, marks=pytest.mark.slow),
        pytest.param(2, "spawn", None, marks=pytest.mark.slow),
    ],
)
def test_batches_are_those_of_local_files_despite_faults(
    bucket: Bucket, prefixes, tmp_path, num_workers, context, shuffle
):
    urls = [bucket.put_pair(prefix, f"data/{number}") for number, prefix in enumerate(prefixes)]
    here = build(prefixes, tmp_path, num_samples=90, block_shuffle=shuffle)
    there = build(urls, tmp_path, num_samples=90, block_shuffle=shuffle)
    bucket.proxy.faults = Faults(shares=dict.fromkeys(KINDS, 0.01), slow_seconds=0.1)
    bucket.proxy.counts.clear()
    expected, nothing = batches_of(here)
    found, statistics = batches_of(there, num_workers=num_workers, multiprocessing_context=context)
    assert nothing == {}
    assert_same(found, expected)
    assert list(statistics) == [f"{url}.bin" for url in urls]
    used, fetched = (
        sum(getattr(each, f"bytes_{kind}") for each in statistics.values()) for kind in ("used", "fetched")
    )
    assert used == sum(2 * int(there.spans(position).num_tokens) for position in range(len(found) * 4))  # uint16
    assert fetched <= bucket.proxy.counts["body_bytes"]
    assert shuffle is not None or fetched <= 1.13 * used


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [None, SHUFFLE])
def test_an_outage_of_the_endpoint_only_costs_time(bucket: Bucket, prefixes, tmp_path, shuffle):
    url = bucket.put_pair(prefixes[0], "data/books")
    here, there = (build([place], tmp_path, block_shuffle=shuffle) for place in (prefixes[0], url))
    expected, _ = batches_of(here)
    forget_statistics()
    sampler = MegatronPretrainingSampler(len(there), 0, 4, 0, 1)
    iterator = iter(build_dataloader(there, sampler, read_ahead_batches=1))
    found = [next(iterator) for _ in range(2)]
    bucket.proxy.go_away()

    def come_back() -> None:
        wait_until(lambda: storage_statistics()[f"{url}.bin"].retries >= 3)
        bucket.proxy.come_back()

    thread = threading.Thread(target=come_back)
    thread.start()
    found += iterator
    thread.join()
    assert_same(found, expected)
    assert storage_statistics()[f"{url}.bin"].retries >= 3


def test_one_epoch_reads_each_byte_about_once(bucket, prefixes, tmp_path):
    url = bucket.put_pair(prefixes[0], "data/books")
    for shuffle, requests_per_block in ((None, None), (BlockShuffle(block_bytes=BLOCK, window_blocks=3), 1)):
        dataset = build([url], tmp_path, block_shuffle=shuffle)
        forget_statistics()
        _, statistics = batches_of(dataset)
        numbers = statistics[f"{url}.bin"]
        assert numbers.amplification <= 1.2
        assert len(object_storage(SETTINGS).ahead) == 0
        if requests_per_block is not None:
            num_blocks = len(dataset.dataset.block_starts(BLOCK))
            assert numbers.requests <= requests_per_block * num_blocks


def test_the_first_batch_sends_concurrent_requests(bucket, prefixes, tmp_path):
    url = bucket.put_pair(prefixes[0], "data/books")
    dataset = build([url], tmp_path)
    assert dataset.span_batch(range(16)).documents.size >= SETTINGS.concurrency
    bucket.proxy.most_at_once, bucket.proxy.faults = 0, Faults(until_at_once=SETTINGS.concurrency)
    assert len(next(iter(build_dataloader(dataset, [list(range(16))])))["tokens"]) == 16
    assert bucket.proxy.most_at_once == SETTINGS.concurrency


@pytest.mark.slow
def test_thread_loaders_prefetch_from_object_storage(bucket, prefixes, tmp_path):
    urls = [bucket.put_pair(prefix, f"data/{number}") for number, prefix in enumerate(prefixes)]
    here, there = build(prefixes, tmp_path, num_samples=60), build(urls, tmp_path, num_samples=60)
    bucket.proxy.faults = Faults(shares=dict.fromkeys(KINDS, 0.01), slow_seconds=0.1)
    expected, _ = batches_of(here)
    for num_threads in (1, 3):
        forget_statistics()
        loader = ThreadLoader(there, MegatronPretrainingSampler(len(there), 0, 4, 0, 1), num_threads=num_threads)
        first = [next(iter(loader))["tokens"].clone() for _ in range(2)][1]
        assert (first == expected[0]["tokens"]).all()
        assert_same(list(loader), expected)
        statistics = loader_statistics(loader)
        assert list(statistics) == [f"{url}.bin" for url in urls]
        assert sum(entry.hits for entry in statistics.values()) > 0


def test_indices_of_remote_data_are_cached_on_the_node_by_default(bucket, prefixes, tmp_path):
    url = bucket.put_pair(prefixes[0], "data/books")
    dataset = make_dataset(url, object_storage_cache_path=str(tmp_path / "mine"), object_storage=SETTINGS)
    assert len(list((tmp_path / "mine").glob("objects-*/indices/*-description.txt"))) == 1
    assert dataset.sample(3)["tokens"].tolist() == make_dataset(prefixes[0]).sample(3)["tokens"].tolist()


def test_blends_announce_to_their_remote_members_only(bucket, prefixes, tmp_path):
    url = bucket.put_pair(prefixes[0], "data/books")
    blend = build([url, prefixes[1]], tmp_path, num_samples=40)
    assert isinstance(blend, BlendedDataset)
    assert blend.remote_paths == [f"{url}.bin"]
    expected = build(prefixes, tmp_path, num_samples=40)
    blend.will_need(range(8))
    found = blend.batch(range(8))
    assert (found["tokens"] == expected.batch(range(8))["tokens"]).all()
    assert found["dataset_id"].dtype == np.int16


def test_workers_have_the_current_environment(bucket, prefixes, tmp_path, monkeypatch):
    url = bucket.put_pair(prefixes[0], "data/books")
    server = forkserver.ForkServer()  # started before the credentials are set
    monkeypatch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
    with monkeypatch.context() as before:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
            before.delenv(name)
        server.ensure_running()
    loader = build_dataloader(build([url], tmp_path), [[0], [1]], num_workers=1)
    assert [len(batch["tokens"]) for batch in loader] == [1, 1]
    del loader
    server._stop()


@pytest.fixture
def prefix(tmp_path, rng):
    def turn(longest: int) -> list[int]:
        return rng.integers(8, 60000, size=rng.integers(1, longest)).tolist()

    talks = [
        conversation((PROMPT, turn(60)), (ANSWER, turn(90)), (PROMPT, turn(40)), (ANSWER, turn(200))) for _ in range(90)
    ]
    return write_conversations(tmp_path / "chat", talks, tokenizer_sha256="ab" * 32)


def build_chats(cls, config_class, prefix: str, tmp_path, *, num_samples: int | None = None):
    changes = {"path_to_cache": str(tmp_path / "indices"), "object_storage": STORAGE, "sequence_length": 512}
    config = config_class(**settings(prefix, **changes))
    return BlendedMegatronDatasetBuilder(cls, [num_samples, None, None], lambda: True, config).build()[0]


@pytest.mark.parametrize(("num_workers", "context"), [(0, None), pytest.param(2, "spawn", marks=pytest.mark.slow)])
def test_packed_batches_are_those_of_local_files(bucket, prefix, tmp_path, num_workers, context):
    url = bucket.put_pair(prefix, "data/chat")
    here = build_chats(SFTDataset, SFTDatasetConfig, prefix, tmp_path, num_samples=40)
    there = build_chats(SFTDataset, SFTDatasetConfig, url, tmp_path, num_samples=40)
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
    here = build_chats(VarlenDataset, VarlenDatasetConfig, prefix, tmp_path)
    there = build_chats(VarlenDataset, VarlenDatasetConfig, url, tmp_path)
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
