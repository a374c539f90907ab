"""Batches as torch's `IterableDataset`: each once, in the sampler's order, whatever the workers."""

from __future__ import annotations

import pickle

import pytest
from tests.adapters.frameworks import NUM_SAMPLES, expected_tokens, samples_of, tokens_of
from tests.adapters.libraries import library
from torch.utils.data import DataLoader, IterableDataset

from tokenloom import ConfigError, MegatronPretrainingSampler
from tokenloom.adapters import iterable_dataset


@pytest.fixture
def batches(tmp_path, rng):
    dataset = samples_of(tmp_path, rng)
    return iterable_dataset(dataset, MegatronPretrainingSampler(NUM_SAMPLES, 0, 4, 0, 1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_batch_comes_once_and_in_order(batches, num_workers):
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
    assert tokens_of(other) == whole  # the next pass is whole again


def test_a_state_of_something_else_is_refused(batches):
    with pytest.raises(ConfigError, match="expected the state of an iterable dataset, version 1, found "):
        batches.load_state_dict({"position": 3})


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "num_workers"), [(0, 0), (3, 2), (9, 2)])
def test_torchdatas_loader_resumes_it(batches, num_workers, stop):
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader

    def make():
        again = iterable_dataset(batches.dataset, batches.sampler)
        return stateful(again, batch_size=None, num_workers=num_workers)

    loader = make()
    handed_out = iter(loader)
    head = [next(handed_out)["tokens"].tolist() for _ in range(stop)]
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert [*head, *tokens_of(resumed)] == expected_tokens(batches.dataset, batches.sampler)
