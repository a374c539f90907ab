"""Ray Train: the workers of a real run share the samples, and go on from a state."""

from __future__ import annotations

import json

import pytest
from tests.adapters.frameworks import SEQUENCE_LENGTH, expected_tokens, samples_of, tokens_of
from tests.adapters.libraries import MUST_BE_THERE, library
from tests.support import StandInTokenizer, make_dataset

from tokenloom import MegatronPretrainingSampler
from tokenloom.adapters import ray_train_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MUST_BE_THERE, reason="a run of Ray Train takes a minute: `make adapters`"),
]


def read(settings):
    """Reads three batches in a worker, and two more with a loader that goes on where the first stood."""
    dataset = make_dataset(
        settings["prefix"], num_samples=40, sequence_length=SEQUENCE_LENGTH, tokenizer=StandInTokenizer(pad=0)
    )
    first, resumed = ray_train_loader(dataset, batch_size=4), ray_train_loader(dataset, batch_size=4)
    batches = iter(first)
    tokens = tokens_of(next(batches) for _ in range(3))
    resumed.load_state_dict(first.state_dict())
    later = iter(resumed)
    tokens += tokens_of(next(later) for _ in range(2))
    context = library("ray.train").get_context()
    told = {"tokens": tokens, "state": first.state_dict(), "size": context.get_world_size()}
    with open(f"{settings['folder']}/{context.get_world_rank()}.json", "w") as file:
        json.dump(told, file)


def test_workers_share_the_samples_and_go_on_from_a_state(tmp_path, rng):
    ray, train = library("ray"), library("ray.train")
    dataset = samples_of(tmp_path, rng)
    whole = expected_tokens(dataset, MegatronPretrainingSampler(len(dataset), 0, 4, 0, 1))
    trainer = library("ray.train.torch").TorchTrainer(
        read,
        train_loop_config={"folder": str(tmp_path), "prefix": str(tmp_path / "corpus")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path), name="run"),
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        trainer.fit()
    finally:
        ray.shutdown()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [told["size"] for told in found] == [2, 2]
    assert found[0]["state"] == found[1]["state"]
    assert [batch for pair in zip(*(told["tokens"] for told in found), strict=True) for batch in pair] == whole[:10]
