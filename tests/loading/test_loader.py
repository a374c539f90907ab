"""Batches through torch's DataLoader, and batches that do not change: in a child, a queue, under memory limits."""

import itertools
import multiprocessing
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.support import make_dataset, write_corpus
from torch.utils.data import DataLoader, Subset

import datasets
from tokenloom import BlendedDataset, ThreadLoader
from tokenloom.datasets import protocols
from tokenloom.datasets.protocols import Announces, FillsBatches, KnowsLengths, KnowsSpans
from tokenloom.loading.loader import build_dataloader, collate
from tokenloom.loading.samplers import MegatronPretrainingSampler

# torch forks while threads run, of which newer versions of Python warn.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class OneByOne:
    """A user's class with only the required methods."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, position):
        return self.dataset[position]


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_batch_is_its_samples_stacked(prefix, changes):
    dataset = make_dataset(prefix, **changes)
    sampler = MegatronPretrainingSampler(len(dataset), 0, 5, 1, 2, drop_last=False)
    expected = list(stacked(dataset, list(sampler)[:-1]))
    assert_equal_batches(list(build_dataloader(dataset, sampler))[: len(expected)], expected)


@pytest.mark.parametrize(("asked", "expected"), [(None, torch.cuda.is_available()), (True, True), (False, False)])
def test_memory_is_pinned_if_requested_or_with_a_device(prefix, asked, expected):
    assert build_dataloader(make_dataset(prefix), [[0]], pin_memory=asked).pin_memory is expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_rank_without_samples_in_the_last_chunk_gets_an_empty_batch(prefix, num_workers):
    sampler = MegatronPretrainingSampler(3, 0, 4, 1, 2, drop_last=False)
    loader = build_dataloader(make_dataset(prefix), sampler, num_workers=num_workers)
    assert [batch["tokens"].shape for batch in loader] == [(0, 4)]


@pytest.mark.usefixtures("forkserver")
@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ("resets", "fork"),
        ("document masking", "forkserver"),
        ("positional reads", "forkserver"),
        pytest.param("positional reads", "spawn", marks=pytest.mark.slow),  # each worker imports torch: 2 s
    ],
)
def test_workers_change_nothing(prefix, changes, start):
    dataset = make_dataset(prefix, **CHANGES[changes])
    dataset.sample(0)  # opens the files, as in a training run
    sampler = MegatronPretrainingSampler(len(dataset), 10, 4, 0, 2)
    loader = build_dataloader(dataset, sampler, num_workers=2, multiprocessing_context=start, prefetch_factor=3)
    assert loader.persistent_workers
    for _ in range(2 if start == "fork" else 1):  # the second epoch uses the same workers
        assert_equal_batches(loader, stacked(dataset, sampler))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_in_the_middle_of_an_epoch_gives_the_same_batches(prefix, num_workers):
    dataset = make_dataset(prefix, num_samples=400, reset_position_ids=True)
    whole = list(build_dataloader(dataset, MegatronPretrainingSampler(400, 0, 5, 1, 4), num_workers=num_workers))
    reopened = make_dataset(prefix, num_samples=400, reset_position_ids=True)
    resumed = build_dataloader(reopened, MegatronPretrainingSampler(400, 7 * 20, 5, 1, 4), num_workers=num_workers)
    assert_equal_batches(resumed, whole[7:])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_class_of_two_methods_is_collated(prefix, num_workers):
    dataset = make_dataset(prefix)
    sampler = MegatronPretrainingSampler(len(dataset), 0, 5, 0, 1)
    plain = OneByOne(dataset)
    for loader in (build_dataloader(plain, sampler, num_workers=num_workers), ThreadLoader(plain, sampler)):
        assert_equal_batches(loader, stacked(dataset, sampler))


def test_a_plain_data_loader(prefix):
    dataset = make_dataset(prefix, create_attention_mask=True)
    expected = list(stacked(dataset, [range(k, k + 3) for k in range(0, 9, 3)]))
    assert_equal_batches(list(DataLoader(dataset, batch_size=3))[:3], expected)
    assert_equal_batches(DataLoader(Subset(dataset, range(9)), batch_size=3), expected)
    assert_equal_batches(DataLoader(dataset, batch_sampler=[[0, 1, 2]]), expected[:1])
    assert_equal_batches(list(DataLoader(dataset, batch_size=3, num_workers=1))[:3], expected)


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


def test_our_datasets_offer_what_is_written_down(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "corpus", [[1, 2, 3, 9]] * 9), num_samples=8)
    blend = BlendedDataset([dataset], [8], None, dataset.config)
    for each in (dataset, blend):
        assert isinstance(each, FillsBatches)
        assert isinstance(each, Announces)
        assert hasattr(each, "verify_indices")
    assert isinstance(dataset, KnowsSpans)
    assert not isinstance(dataset, KnowsLengths)
    assert protocols.pair_of(dataset.dataset) is dataset.dataset
    assert not protocols.is_remote_dataset(dataset)


def test_a_dataset_of_another_library_is_loaded_whatever_its_batch_means():
    rows = datasets.Dataset.from_dict({"number": [[5], [6], [7], [8]]}).with_format("numpy")
    batches = [[3, 1], [0, 2]]
    for loader in (ThreadLoader(rows, batches), build_dataloader(rows, batches)):
        assert [np.asarray(batch["number"]).ravel().tolist() for batch in loader] == [[8, 6], [5, 7]]
