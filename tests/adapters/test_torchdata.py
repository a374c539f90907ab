"""torchdata's `StatefulDataLoader`: the sampler's batches, and the same ones after a state."""

from __future__ import annotations

import pickle

import pytest
from tests.adapters.frameworks import NUM_SAMPLES, expected_tokens, samples_of, tokens_of
from tests.adapters.libraries import library

from tokenloom import MegatronPretrainingSampler
from tokenloom.adapters import stateful_dataloader
from tokenloom.loading.samplers import MegatronPretrainingRandomSampler

pytestmark = pytest.mark.slow

StatefulDataLoader = library("torchdata.stateful_dataloader").StatefulDataLoader


def in_order(dataset, rank=0, size=1):
    return MegatronPretrainingSampler(NUM_SAMPLES, 0, 4, rank, size)


def shuffled(dataset, rank=0, size=1):
    return MegatronPretrainingRandomSampler(dataset, NUM_SAMPLES, 0, 4, rank, size, True)


@pytest.mark.parametrize(
    ("make_sampler", "stop", "num_workers"), [(in_order, 0, 0), (in_order, 9, 2), (shuffled, 3, 0), (shuffled, 3, 2)]
)
def test_a_state_resumes_in_the_middle_of_an_epoch(tmp_path, rng, make_sampler, stop, num_workers):
    dataset = samples_of(tmp_path, rng)

    def make():
        return stateful_dataloader(dataset, make_sampler(dataset), num_workers=num_workers)

    loader = make()
    assert isinstance(loader, StatefulDataLoader)
    batches = iter(loader)
    head = [next(batches)["tokens"].tolist() for _ in range(stop)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    assert [*head, *tokens_of(resumed)] == expected_tokens(dataset, make_sampler(dataset))


def test_ranks_share_the_samples(tmp_path, rng):
    dataset = samples_of(tmp_path, rng)
    found = [tokens_of(stateful_dataloader(dataset, in_order(dataset, rank, 2))) for rank in range(2)]
    whole = expected_tokens(dataset, in_order(dataset))
    assert [batch for pair in zip(*found, strict=True) for batch in pair] == whole
