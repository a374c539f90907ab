"""torch: batches as its `IterableDataset`, and torchdata's `StatefulDataLoader`."""

from __future__ import annotations

import pickle

import pytest
from tests.adapters.frameworks import NUM_SAMPLES, expected_tokens, in_order, in_turns, samples_of, tokens_of
from tests.adapters.libraries import library
from torch.utils.data import DataLoader, IterableDataset

from tokenloom import ConfigError
from tokenloom.adapters import iterable_dataset, stateful_dataloader
from tokenloom.loading.samplers import MegatronPretrainingRandomSampler


@pytest.fixture
def batches(tmp_path, rng):
    return iterable_dataset(samples_of(tmp_path, rng), in_order())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_yielded_in_order(batches, num_workers):
    assert isinstance(batches, IterableDataset)
    loader = DataLoader(batches, batch_size=None, num_workers=num_workers)
    assert len(batches) == len(loader) == 10
    assert tokens_of(loader) == expected_tokens(batches.dataset, batches.sampler)


def test_a_state_resumes_after_the_last_batch(batches):
    whole = tokens_of(batches)
    first = iter(batches)
    head = [next(first)["tokens"].tolist() for _ in range(3)]
    state = batches.state_dict()
    other = pickle.loads(pickle.dumps(iterable_dataset(batches.dataset, batches.sampler)))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [*head, *tokens_of(other)] == whole
    assert tokens_of(other) == whole  # the next epoch
    with pytest.raises(ConfigError, match="`state`: must be a state of version 1, got"):
        batches.load_state_dict({"position": 3})


def shuffled():
    return MegatronPretrainingRandomSampler(None, NUM_SAMPLES, 0, 4, 0, 1, True)


def iterable_in_loader(dataset, sampler, *, num_workers):
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader
    return stateful(iterable_dataset(dataset, sampler), batch_size=None, num_workers=num_workers)


@pytest.mark.slow
@pytest.mark.parametrize("make", [stateful_dataloader, iterable_in_loader])
@pytest.mark.parametrize(
    ("make_sampler", "stop", "num_workers"), [(in_order, 0, 0), (in_order, 9, 2), (shuffled, 3, 0), (shuffled, 3, 2)]
)
def test_torchdatas_loader_resumes(tmp_path, rng, make, make_sampler, stop, num_workers):
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader
    dataset = samples_of(tmp_path, rng)
    loader, resumed = (make(dataset, make_sampler(), num_workers=num_workers) for _ in range(2))
    assert isinstance(loader, stateful)
    batches = iter(loader)
    head = [next(batches)["tokens"].tolist() for _ in range(stop)]
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert [*head, *tokens_of(resumed)] == expected_tokens(dataset, make_sampler())


@pytest.mark.slow
def test_ranks_share_the_samples(tmp_path, rng):
    library("torchdata")
    dataset = samples_of(tmp_path, rng)
    ranks = [tokens_of(stateful_dataloader(dataset, in_order(rank, 2))) for rank in range(2)]
    assert in_turns(ranks) == expected_tokens(dataset, in_order())
