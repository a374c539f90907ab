"""The samplers of `tokenloom.megatron.training.datasets.data_samplers`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.megatron.training.datasets.data_samplers import HybridCPMegatronPretrainingSampler as Hybrid
from tokenloom.megatron.training.datasets.data_samplers import MegatronFullValidationSampler as Full
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingRandomSampler as Shuffled
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingSampler as Ordered
from tokenloom.megatron.training.datasets.data_samplers import RandomSeedDataset


def shortened(kind):
    class Shorter(kind):
        def get_start_end_idx(self):
            start, stop = super().get_start_end_idx()
            return start, stop - 1

    return Shorter


def on_both(kind, *arguments):
    """Returns the batches of both ranks; "rank" stands for the arguments rank and size."""
    return [list(at_rank(kind, rank, *arguments)) for rank in range(2)]


def at_rank(kind, rank, *arguments):
    return kind(*(each for argument in arguments for each in ((rank, 2) if argument == "rank" else (argument,))))


def attributes(sampler, *names):
    return [getattr(sampler, name) for name in names]


def two_epochs(sharded):
    samplers = [at_rank(Shuffled, rank, None, 11, 0, 2, "rank", sharded) for rank in range(2)]
    return [[list(sampler), list(sampler), sampler.consumed_samples, sampler.epoch] for sampler in samplers]


CASES = [
    (lambda: on_both(Ordered, 11, 3, 2, "rank"), [[[3, 4], [7, 8]], [[5, 6], [9, 10]]]),
    (lambda: on_both(Ordered, 11, 0, 2, "rank", False), [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]),
    (lambda: on_both(Ordered, 9, 0, 2, "rank", False), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]),
    (lambda: list(shortened(Ordered)(8, 0, 2, 0, 2)), [[0], [4]]),
    (
        lambda: attributes(
            Ordered(100, 10, 2, 1, 2),
            *("total_samples", "consumed_samples", "micro_batch_size", "data_parallel_rank"),
            *("micro_batch_times_data_parallel_size", "drop_last"),
        ),
        [100, 10, 2, 1, 4, True],
    ),
    (lambda: Ordered(100, 10, 2, 1, 2).get_start_end_idx(), (2, 4)),
    (lambda: on_both(Hybrid, 20, 1, 2, 8, "rank"), [[[1, 2, 5, 6], [9, 10, 13, 14]], [[3, 4, 7, 8], [11, 12, 15, 16]]]),
    (  # rounded down to a global batch of 8
        lambda: on_both(Hybrid, 20, 0, 2, 10, "rank"),
        [[[0, 1, 4, 5], [8, 9, 12, 13]], [[2, 3, 6, 7], [10, 11, 14, 15]]],
    ),
    (lambda: on_both(Hybrid, 14, 0, 2, 8, "rank", False), [[[0, 1, 4, 5], [8, 9, 12, 13]], [[2, 3, 6, 7], [10, 11]]]),
    (lambda: list(shortened(Hybrid)(16, 0, 2, 8, 1, 2)), [[2, 6], [10, 14]]),
    (
        lambda: attributes(Hybrid(20, 1, 2, 8, 1, 2), "num_micro_batches", "global_batch_size", "data_parallel_size"),
        [2, 8, 2],
    ),
    (lambda: [list(Full(7, rank, 3)) for rank in range(3)], [[[0], [3], [6]], [[1], [4]], [[2], [5]]]),
    (
        lambda: two_epochs(False),
        [[[[4, 7], [3, 0]], [[5, 1], [0, 9]], 16, 1], [[[1, 5], [9, 8]], [[6, 2], [8, 3]], 16, 1]],
    ),
    (
        lambda: two_epochs(True),
        [[[[0, 1], [3, 2]], [[1, 3], [2, 0]], 16, 1], [[[4, 5], [7, 6]], [[5, 7], [6, 4]], 16, 1]],
    ),
    (lambda: attributes(Shuffled(None, 102, 0, 2, 0, 2, False), "last_batch_size", "consumed_samples"), [2, 0]),
    (lambda: [len(Ordered(100, 10, 2, 0, 2)), len(Hybrid(20, 1, 2, 8, 0, 2))], [100, 20]),
    (
        lambda: [len(Shuffled(None, 100, 8, 2, 0, 2, False)), *(len(Full(7, rank, 3)) for rank in range(3))],
        [100, 3, 2, 2],
    ),
]
"""Results of Megatron's samplers, recorded with 0.19.2."""

WRONG = [
    lambda: Ordered(100, 100, 2, 0, 2),
    lambda: Ordered(0, 0, 2, 0, 2),
    lambda: Ordered(10, 0, 0, 0, 2),
    lambda: Hybrid(14, 0, 2, 3, 0, 2),  # less than a micro-batch of all ranks
    lambda: Ordered(10, 0, 1, 2, 2),
    lambda: Shuffled(None, 0, 0, 2, 0, 2, False),
    lambda: list(Shuffled(None, 100, 3, 2, 0, 2, False)),  # within a batch
    lambda: list(Shuffled(None, 23, 28, 3, 0, 2, False)),
    lambda: list(Shuffled(None, 3, 0, 2, 0, 2, False)),  # less than a batch
    lambda: Full(0, 0, 1),
]


@pytest.mark.parametrize(("found", "expected"), CASES)
def test_samplers_equal_megatrons(found, expected):
    assert found() == expected


@pytest.mark.parametrize("attempt", WRONG)
def test_errors_are_assertion_errors(attempt):
    with pytest.raises(AssertionError):
        attempt()


def test_samplers_resume():
    sampler = Hybrid(20, 0, 2, 10, 1, 2)
    assert isinstance(sampler, DataParallelSampler)
    assert [sampler.position_after(count) for count in range(3)] == [0, 8, 16]
    sampler.begin_at(8)
    assert list(sampler) == [[10, 11, 14, 15]]


class Draws:
    def __len__(self):
        return 4

    def __getitem__(self, idx):
        return torch.tensor([torch.rand(()).item(), np.random.random(), random.random()])  # noqa: NPY002


def test_samples_have_their_own_seeds():
    dataset = RandomSeedDataset(Draws(), seed=5)
    first = dataset[2]
    dataset[0]
    assert torch.equal(dataset[2], first)
    assert torch.equal(RandomSeedDataset(Draws(), seed=7)[0], first)
    dataset.set_epoch(1)
    assert torch.equal(dataset[1], first)


def test_the_random_sampler_sets_the_epoch():
    dataset = RandomSeedDataset(Draws(), seed=5)
    loader = DataLoader(dataset, batch_sampler=Shuffled(dataset, 4, 4, 2, 0, 1, False))
    (first, _), (second, _) = list(loader), list(loader)
    assert dataset.curr_seed == 7
    assert not torch.equal(first, second)
