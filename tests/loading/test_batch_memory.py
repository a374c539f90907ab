"""Batches do not change: with workers, in a forked child, as a view, in a queue, and under memory limits."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import threading
from pathlib import Path

import pytest
import torch
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.support import make_dataset

from tokenloom import MegatronPretrainingSampler, ThreadLoader
from tokenloom.loading.loader import build_dataloader, collate

# torch forks while threads run, of which newer versions of Python warn.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SAMPLER = MegatronPretrainingSampler(60, 0, 3, 0, 1)
LOADERS = {
    "workers": lambda dataset: build_dataloader(dataset, SAMPLER, num_workers=2),
    "no workers": lambda dataset: build_dataloader(dataset, SAMPLER),
    "threads": lambda dataset: ThreadLoader(dataset, SAMPLER, pin_memory=False),
    "ring": lambda dataset: ThreadLoader(dataset, SAMPLER, pin_memory=False, reuse_after=1),
}


@pytest.fixture
def dataset(prefix):
    return make_dataset(prefix, num_samples=60, sequence_length=8192)  # large enough for reused memory


@pytest.mark.parametrize("changes", CHANGES)
def test_a_worker_sends_one_storage_of_shared_memory(prefix, changes):
    dataset, batches = make_dataset(prefix, **CHANGES[changes]), [[0, 1, 2], [5], [7, None]]
    for found, positions in zip(build_dataloader(dataset, batches, num_workers=1), batches, strict=True):
        assert_equal_batches([found], [collate(dataset.__getitems__(positions))])
        assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
        assert all(tensor.is_shared() for tensor in found.values())
        if changes == "masks":  # one mask for all samples
            assert found["attention_mask"][0].data_ptr() == found["attention_mask"][-1].data_ptr()
        found["tokens"].zero_()  # does not change other batches


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_forked_child_keeps_its_batch_while_the_parent_reads(dataset, make):
    loader = iter(make(dataset))
    batch = next(loader)
    tokens, expected = batch["tokens"].numpy(), batch["tokens"].numpy().copy()
    parent_is_done, tell = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.read(parent_is_done, 1)
            os._exit(0 if (tokens == expected).all() else 1)
        finally:
            os._exit(2)
    del batch, tokens
    list(itertools.islice(loader, 15))
    os.write(tell, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("way", ["share_memory_", "queue"])
def test_a_view_of_a_batch_survives_sending_the_batch(dataset, way):
    loader = iter(LOADERS["workers"](dataset))
    batch = next(loader)
    view, expected = batch["tokens"].numpy(), batch["tokens"].numpy().copy()
    queue = torch.multiprocessing.SimpleQueue()
    if way == "queue":
        queue.put(batch)
    else:
        batch["tokens"].share_memory_()
    del batch
    list(itertools.islice(loader, 15))
    assert (view == expected).all()
    if way == "queue":
        assert (queue.get()["tokens"].numpy() == expected).all()


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_sending_a_batch_does_not_change_later_batches(dataset, make):
    queue = torch.multiprocessing.SimpleQueue()
    batches = zip(make(dataset), stacked(dataset, SAMPLER), strict=True)
    for batch, expected in itertools.islice(batches, 8):
        assert_equal_batches([batch], [expected])
        queue.put(batch)
        assert_equal_batches([queue.get()], [expected])


@pytest.mark.parametrize(("limit", "most"), [(resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_FSIZE, 64 << 20)])
def test_workers_read_under_limits_of_address_space_and_file_size(prefix, limit, most):
    dataset, batches = make_dataset(prefix), [[0, 1], [2, 3], [4, 5], [6, 7]]
    if limit == resource.RLIMIT_AS:  # in addition to the current size
        most += int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()

    def read():
        resource.setrlimit(limit, (most, most))
        assert_equal_batches(build_dataloader(dataset, batches, num_workers=2), stacked(dataset, batches))

    process = multiprocessing.get_context("fork").Process(target=read)  # the limit is permanent
    process.start()
    process.join()
    assert process.exitcode == 0


def test_page_locked_batches_are_tensors_owned_by_torch(prefix, monkeypatch):
    made, empty = [], torch.empty

    def recorded(*args, pin_memory=False, **settings):  # needs no CUDA
        tensor = empty(*args, **settings)
        made.extend([tensor.untyped_storage()] * pin_memory)
        return tensor

    dataset = make_dataset(prefix, create_attention_mask=True)
    monkeypatch.setattr(torch, "empty", recorded)
    batches = list(ThreadLoader(dataset, [[0, 1], [2]], pin_memory=True))
    assert_equal_batches(batches, stacked(dataset, [[0, 1], [2]]))
    for batch in batches:
        ours = {name for name, tensor in batch.items() if not any(tensor.untyped_storage() is each for each in made)}
        assert ours == {"attention_mask"}  # shared by all samples


def test_threads_may_iterate_one_loader(prefix):
    dataset, seen, found = make_dataset(prefix), [], {}
    all_are_here = threading.Barrier(3)

    class Sampler:
        def __iter__(self):
            all_are_here.wait()
            seen.append(loader.collate_fn)
            return iter([[0, 1], [2, 3]])

    loader = build_dataloader(dataset, Sampler(), num_workers=1, persistent_workers=False)
    threads = [threading.Thread(target=lambda k=k: found.update({k: list(loader)})) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert_equal_batches(found[number], stacked(dataset, [[0, 1], [2, 3]]))
    assert {*seen, loader.collate_fn} == {collate}
