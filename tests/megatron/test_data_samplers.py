"""Samplers and the data loader of `tokenloom.megatron.training.datasets.data_samplers`."""

from __future__ import annotations

import random
from argparse import Namespace
from enum import Enum

import numpy as np
import pytest
import torch
from tests.support import equal_samples, make_config, write_corpus
from torch.utils.data import DataLoader

from tokenloom.datasets.splits import Split
from tokenloom.errors import ResonanceWarning
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.training.datasets import data_samplers
from tokenloom.megatron.training.datasets.data_samplers import HybridCPMegatronPretrainingSampler as Hybrid
from tokenloom.megatron.training.datasets.data_samplers import MegatronFullValidationSampler as Full
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingRandomSampler as Shuffled
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingSampler as Ordered
from tokenloom.megatron.training.datasets.data_samplers import RandomSeedDataset, build_pretraining_data_loader

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

SETTINGS = {"dataloader_type": "single", "micro_batch_size": 2, "global_batch_size": 8, "num_workers": 0}

OtherSplit = Enum("OtherSplit", "train valid test")


class Numbers(torch.utils.data.Dataset):
    def __init__(self, length=24, **attributes):
        self.length = length
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        return {"number": torch.tensor(idx)}


def build(dataset, consumed=0, *, rank=1, size=2, **changes):
    args = Namespace(**(SETTINGS | changes))
    return build_pretraining_data_loader(dataset, consumed, args=args, data_parallel_rank=rank, data_parallel_size=size)


def numbers(loader):
    return [batch["number"].tolist() for batch in loader]


def test_batches_start_after_the_consumed_samples():
    loader = build(Numbers(), 8)
    assert (len(loader), loader.pin_memory, loader.worker_init_fn) == (24, True, None)
    assert numbers(loader) == [[10, 11], [14, 15], [18, 19], [22, 23]]


@pytest.mark.parametrize("split", [Split.valid, OtherSplit.valid, OtherSplit.test, Split.train, None])
@pytest.mark.parametrize("name", ["split", "index_split"])
def test_evaluation_has_its_own_batch_sizes(split, name):
    dataset = Numbers(**{name: split})
    sizes = {"eval_micro_batch_size": 3, "eval_global_batch_size": 12}
    sampler = build(dataset, **sizes, hybrid_context_parallel=True).batch_sampler
    expected = (3, 12) if split is not None and split.name != "train" else (2, 8)
    assert (sampler.micro_batch_size, sampler.global_batch_size) == expected
    is_full = type(build(dataset, full_validation=True).batch_sampler).__name__ == "MegatronFullValidationSampler"
    assert is_full == (split is not None and split.name == "valid")


def test_a_whole_global_batch_is_a_list():
    (first, *_) = build(Numbers(), hybrid_context_parallel=True)
    assert [int(sample["number"]) for sample in first] == [2, 3, 6, 7]


def test_other_kinds_of_loaders():
    assert numbers(build(Numbers(11), dataloader_type="cyclic", data_sharding=True, rank=0)) == [[0, 1], [3, 2]]
    dataset = Numbers()
    assert build(dataset, dataloader_type="external") is dataset
    with pytest.raises(Exception, match="odd dataloader type is not supported"):
        build(dataset, dataloader_type="odd")


@pytest.mark.parametrize(("paths", "start"), [([], None), (["s3://bucket/web.bin"], "forkserver")])
def test_workers_of_remote_data_are_not_forked(paths, start):
    dataset = Numbers(remote_paths=paths, will_need=lambda positions: None)
    context = build(dataset, num_workers=1).multiprocessing_context
    assert (context and context.get_start_method()) == start
    assert build(dataset).multiprocessing_context is None


def test_an_empty_dataset(monkeypatch):
    assert build(None) is None
    monkeypatch.setattr(data_samplers, "reference_version", lambda: (0, 20))
    assert build(Numbers(0)) is None
    monkeypatch.setattr(data_samplers, "reference_version", lambda: (0, 19, 2))
    with pytest.raises(AssertionError, match="dataset is empty"):
        build(Numbers(0))


def test_defaults_are_those_of_the_program(monkeypatch):
    state = Namespace(get_data_parallel_rank=lambda: 0, get_data_parallel_world_size=lambda: 3)
    monkeypatch.setattr(data_samplers, "get_args", lambda: Namespace(**SETTINGS))
    monkeypatch.setattr(data_samplers, "_parallel_state", lambda: state)
    assert data_samplers.mpu is state
    assert numbers(build_pretraining_data_loader(Numbers(12), 0)) == [[0, 1], [6, 7]]


def gpt_dataset(tmp_path, kind=GPTDataset):
    prefix = write_corpus(tmp_path / "corpus", [range(40), range(30)])
    settings = {"sequence_length": 8, "create_attention_mask": True, "path_to_cache": str(tmp_path / "cache")}
    config = make_config(prefix, kind=GPTDatasetConfig, **settings)
    return kind(IndexedDataset(prefix), prefix, np.arange(2, dtype=np.int32), 8, Split.train, config)


def test_batches_equal_collated_samples(tmp_path):
    dataset = gpt_dataset(tmp_path)
    loader = build(dataset, rank=0, size=1, micro_batch_size=3)
    expected = [torch.utils.data.default_collate([dataset[k] for k in range(first, first + 3)]) for first in (0, 3)]
    for batch, other in zip(loader, expected, strict=False):
        assert equal_samples(batch, other)
    samples = dataset.__getitems__([0, 1])
    samples[1]["tokens"] = samples[1]["tokens"] + 1
    found = loader.collate_fn(samples)["tokens"]
    assert found.tolist() == [dataset[0]["tokens"].tolist(), (dataset[1]["tokens"] + 1).tolist()]

    class Changed(GPTDataset):
        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "number": idx}

    loader = build(gpt_dataset(tmp_path, Changed), rank=0, size=1)
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_blend_that_resonates_with_the_ranks(tmp_path, rng):
    prefixes = [write_corpus(tmp_path / name, rng.integers(0, 90, size=(10, 40))) for name in ("books", "web")]
    changes = {"blend": (prefixes, [1.0, 1.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = make_config(None, kind=GPTDatasetConfig, **changes)
    mixed = BlendedMegatronDatasetBuilder(GPTDataset, [160, None, None], lambda: True, config).build()[0]
    sizes = {"micro_batch_size": 1, "global_batch_size": 8}
    with pytest.warns(ResonanceWarning, match="50.0% of the blend, but during the whole run 0.0% of the samples"):
        by_turns = build(mixed, rank=0, **sizes)
    assert {int(batch["dataset_id"]) for batch in by_turns} == {0}
    evenly = [int(batch["dataset_id"]) for batch in build(mixed, rank=0, **sizes, dataloader_type="balanced")]
    assert evenly.count(0) == evenly.count(1) == 40


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


ATTRIBUTES = ("total_samples", "consumed_samples", "micro_batch_size", "data_parallel_rank")
ATTRIBUTES += ("micro_batch_times_data_parallel_size", "drop_last")
CASES = [
    (lambda: on_both(Ordered, 11, 3, 2, "rank"), [[[3, 4], [7, 8]], [[5, 6], [9, 10]]]),
    (lambda: on_both(Ordered, 11, 0, 2, "rank", False), [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]),
    (lambda: on_both(Ordered, 9, 0, 2, "rank", False), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]),
    (lambda: list(shortened(Ordered)(8, 0, 2, 0, 2)), [[0], [4]]),
    (lambda: attributes(Ordered(100, 10, 2, 1, 2), *ATTRIBUTES), [100, 10, 2, 1, 4, True]),
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
    (lambda: two_epochs(False)[0], [[[4, 7], [3, 0]], [[5, 1], [0, 9]], 16, 1]),
    (lambda: two_epochs(False)[1], [[[1, 5], [9, 8]], [[6, 2], [8, 3]], 16, 1]),
    (lambda: two_epochs(True)[0], [[[0, 1], [3, 2]], [[1, 3], [2, 0]], 16, 1]),
    (lambda: two_epochs(True)[1], [[[4, 5], [7, 6]], [[5, 7], [6, 4]], 16, 1]),
    (lambda: attributes(Shuffled(None, 102, 0, 2, 0, 2, False), "last_batch_size", "consumed_samples"), [2, 0]),
    (lambda: [len(Ordered(100, 10, 2, 0, 2)), len(Hybrid(20, 1, 2, 8, 0, 2))], [100, 20]),
    (lambda: len(Shuffled(None, 100, 8, 2, 0, 2, False)), 100),
    (lambda: [len(Full(7, rank, 3)) for rank in range(3)], [3, 2, 2]),
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
