"""Ray Train: the workers of a real run share the samples, and resume."""

from __future__ import annotations

import json

import pytest
from tests.adapters.frameworks import SEQUENCE_LENGTH, expected_tokens, in_turns, samples_of, tokens_of
from tests.adapters.libraries import MUST_BE_THERE, library
from tests.support import StandInTokenizer, make_dataset

from tokenloom.adapters import ray_train_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MUST_BE_THERE, reason="a run of Ray Train takes a minute: `make adapters`"),
]


def read(settings):
    """Reads three batches in a worker, and two more with a loader that resumes."""
    given = {"sequence_length": SEQUENCE_LENGTH, "tokenizer": StandInTokenizer(pad=0)}
    dataset = make_dataset(settings["prefix"], num_samples=40, **given)
    first, resumed = ray_train_loader(dataset, batch_size=4), ray_train_loader(dataset, batch_size=4)
    batches = iter(first)
    tokens = tokens_of(next(batches) for _ in range(3))
    resumed.load_state_dict(first.state_dict())
    later = iter(resumed)
    tokens += tokens_of(next(later) for _ in range(2))
    context = library("ray.train").get_context()
    result = {"tokens": tokens, "state": first.state_dict(), "size": context.get_world_size()}
    with open(f"{settings['folder']}/{context.get_world_rank()}.json", "w") as file:
        json.dump(result, file)


def test_workers_share_the_samples_and_resume(tmp_path, rng):
    ray, train = library("ray"), library("ray.train")
    whole = expected_tokens(samples_of(tmp_path, rng))
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
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [result["size"] for result in results] == [2, 2]
    assert results[0]["state"] == results[1]["state"]
    assert in_turns([result["tokens"] for result in results]) == whole[:10]
