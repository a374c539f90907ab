"""`tokenloom.megatron.sample_counts`."""

from __future__ import annotations

import pytest
from tests.megatron.arguments import arguments

from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.megatron.sample_counts import (
    batch_sizes_of,
    data_parallel_size,
    global_batch_size,
    phase_transitions,
    train_valid_test_num_samples,
)

ITERATIONS = {"global_batch_size": 8, "train_iters": 1000, "eval_interval": 100, "eval_iters": 5}
SAMPLES = ITERATIONS | {"train_iters": None, "train_samples": 8100}


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (ITERATIONS, (8000, 440, 40)),
        (ITERATIONS | {"full_validation": True, "eval_interval": None}, (8000, None, 40)),
        (ITERATIONS | {"skip_train": True}, (8000, 40, 40)),
        (ITERATIONS | {"start_eval_at_iter": 250}, (8000, 360, 40)),
        (ITERATIONS | {"start_eval_at_iter": 9000}, (8000, 0, 40)),
        (ITERATIONS | {"eval_global_batch_size": 2}, (8000, 110, 10)),
        (SAMPLES, (8100, 440, 40)),  # 1012 steps, as the trainer rounds them
        (SAMPLES | {"phase_transition_iterations": "600, 250"}, (2000, 440, 40)),
        (SAMPLES | {"phase_transition_iterations": [250, 600], "iteration": 250}, (2800, 440, 40)),
        (SAMPLES | {"phase_transition_iterations": "600", "iteration": 900}, (3300, 440, 40)),
        (SAMPLES | {"global_batch_size": None, "world_size": 4}, (8100, 440, 40)),
        (SAMPLES | {"rampup_batch_size": ["4", "4", "800"]}, (8100, 480, 40)),  # 200 steps of 4, and 912 of 8
    ],
)
def test_sizes_are_the_trainers(changes, sizes):
    assert train_valid_test_num_samples(arguments(**changes)) == sizes


def test_schedule_counts_steps_of_every_size():
    args = arguments(train_samples=8100, eval_interval=100, eval_iters=1, step_batch_size_schedule="0:4 128000:8")
    # 2000 samples in steps of 4, then 6100 in steps of 8: 500 + 763 steps
    assert train_valid_test_num_samples(args) == (8100, 13 * 2, 2)
    assert batch_sizes_of(args).batch_size(2000) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_batch_size": 8}, "--train-iters or --train-samples"),
        (ITERATIONS | {"eval_interval": None}, "--eval-interval"),
        (ITERATIONS | {"phase_transition_iterations": "250"}, "--train-samples with phases"),
        (SAMPLES | {"phase_transition_iterations": "250,x"}, "item 2 'x'"),
        (SAMPLES | {"phase_transition_iterations": "250", "iteration": 2000}, "before the end of the run"),
        (SAMPLES | {"phase_transition_iterations": "9", "rampup_batch_size": [4, 4, 8]}, "fixed batch size"),
        (SAMPLES | {"step_batch_size_schedule": "0:4", "rampup_batch_size": [4, 4, 8]}, "--rampup-batch-size"),
        (
            SAMPLES | {"step_batch_size_schedule": "0:4", "_is_global_batch_size_explicitly_specified": True},
            "--step-batch-size-schedule and --global-batch-size",
        ),
        (SAMPLES | {"global_batch_size": None, "micro_batch_size": None}, "--micro-batch-size"),
        (SAMPLES | {"global_batch_size": None, "world_size": 3, "tensor_model_parallel_size": 2}, "world size"),
    ],
)
def test_what_cannot_be_meant_is_said(changes, words):
    with pytest.raises(ConfigError, match=words):
        train_valid_test_num_samples(arguments(**changes))


def test_iterations_with_a_schedule_are_warned_of():
    args = arguments(**ITERATIONS | {"global_batch_size": None, "step_batch_size_schedule": "0:4 128000:8"})
    with pytest.warns(IgnoredSettingWarning, match="1000 steps of 2 samples only: name --train-samples"):
        assert train_valid_test_num_samples(args)[0] == 2000


def test_ranks_and_batch_sizes_follow_from_others():
    assert data_parallel_size({"world_size": 16, "tensor_model_parallel_size": 2, "context_parallel_size": 2}) == 4
    assert data_parallel_size(arguments(data_parallel_size=3)) == 3
    assert global_batch_size(arguments(world_size=4)) == 8
    assert phase_transitions(arguments()) == []
