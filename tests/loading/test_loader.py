"""Batches through torch's DataLoader."""

from __future__ import annotations

import pytest
import torch
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.support import make_dataset
from torch.utils.data import DataLoader, Subset

from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler

# torch forks while threads run, of which newer versions of Python warn.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class OneByOne:
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
def test_a_dataset_without_batches_is_collated(prefix, num_workers):
    dataset = make_dataset(prefix)
    sampler = MegatronPretrainingSampler(len(dataset), 0, 5, 0, 1)
    loader = build_dataloader(OneByOne(dataset), sampler, num_workers=num_workers)
    assert_equal_batches(loader, stacked(dataset, sampler))


def test_a_plain_data_loader(prefix):
    dataset = make_dataset(prefix, create_attention_mask=True)
    expected = list(stacked(dataset, [range(k, k + 3) for k in range(0, 9, 3)]))
    assert_equal_batches(list(DataLoader(dataset, batch_size=3))[:3], expected)
    assert_equal_batches(DataLoader(Subset(dataset, range(9)), batch_size=3), expected)
    assert_equal_batches(DataLoader(dataset, batch_sampler=[[0, 1, 2]]), expected[:1])
    assert_equal_batches(list(DataLoader(dataset, batch_size=3, num_workers=1))[:3], expected)
