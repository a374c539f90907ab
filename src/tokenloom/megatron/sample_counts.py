"""How many samples a training run asks for, from the arguments of the reference's trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizes, BatchSizeSchedule
from tokenloom.megatron.step_schedule import step_batch_size_schedule
from tokenloom.numbers import checked_integer, items_of, parse_integer, quoted


def argument_values(args: Any) -> Mapping[str, Any]:
    """Returns arguments by name: those of a namespace, as a parser makes it, or a mapping as it is."""
    return args if isinstance(args, Mapping) else vars(args)


def global_batch_size(args: Any) -> int:
    """Returns the samples of a step: as named, else a micro-batch of each data-parallel rank, as the trainer does.

    Raises:
        ConfigError: neither is named.
    """
    values = argument_values(args)
    if (size := values.get("global_batch_size")) is not None:
        return checked_integer("--global-batch-size", size, at_least=1)
    micro = _required(values, "micro_batch_size", "no global batch size")
    return checked_integer("--micro-batch-size", micro, at_least=1) * data_parallel_size(args)


def data_parallel_size(args: Any) -> int:
    """Returns the data-parallel ranks: as validated, else the ranks divided by those that work on one sample."""
    values = argument_values(args)
    if (size := values.get("data_parallel_size")) is not None:
        return checked_integer("the data-parallel size", size, at_least=1)
    world = checked_integer("the world size", values.get("world_size") or 1, at_least=1)
    shared = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        shared *= checked_integer(f"--{name.replace('_', '-')}", values.get(name) or 1, at_least=1)
    if world % shared:
        message = f"expected a world size that tensor, pipeline and context parallelism divide, found {world}"
        raise ConfigError(message, hint=f"{shared} ranks work on one sample")
    return world // shared


def batch_sizes_of(args: Any) -> BatchSizes:
    """Returns the size of each global batch: of the step schedule, of the older ramp-up, or always the same.

    Raises:
        ConfigError: a schedule cannot be read, or excludes another argument.
    """
    values = argument_values(args)
    schedule, rampup = values.get("step_batch_size_schedule"), values.get("rampup_batch_size")
    if schedule is not None:
        for name in ("rampup_batch_size", "decrease_batch_size_if_needed"):
            if values.get(name):
                message = f"--step-batch-size-schedule and --{name.replace('_', '-')} exclude each other, found both"
                raise ConfigError(message)
        if values.get("_is_global_batch_size_explicitly_specified"):
            message = "--step-batch-size-schedule and --global-batch-size exclude each other, found both"
            raise ConfigError(message)
        return step_batch_size_schedule(schedule, values.get("seq_length"))
    size = global_batch_size(args)
    if rampup is None:
        return BatchSizeSchedule.constant(size)
    start, increment, samples = (int(number) for number in rampup)
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


def train_valid_test_num_samples(args: Any) -> tuple[int, int | None, int]:
    """Returns the samples of train, valid and test that the trainer asks for; None of valid for one whole epoch.

    The reference's `get_train_valid_test_num_samples`, with its phases (`--phase-transition-iterations`).

    Args:
        args: the trainer's arguments, validated or as they were parsed; any version's.

    Raises:
        ConfigError: an argument that counts is missing, or phases cannot be meant.
    """
    values = argument_values(args)
    size = global_batch_size(args)
    eval_size = values.get("eval_global_batch_size") or size
    eval_iters = checked_integer("--eval-iters", values.get("eval_iters") or 0, at_least=0)
    train: int | None = values.get("train_samples") or None
    num_steps = _train_iters(args)
    if train is None:
        if num_steps is None:
            message = "expected --train-iters or --train-samples, found neither"
            raise ConfigError(message)
        if values.get("step_batch_size_schedule") is not None:
            message = f"--train-iters with --step-batch-size-schedule asks for {num_steps} steps of {size} samples only"
            warnings.warn(f"{message}: name --train-samples", IgnoredSettingWarning, stacklevel=2)
        train = num_steps * size
    valid = None if values.get("full_validation") else _eval_points(values, num_steps) * eval_iters * eval_size
    phases = phase_transitions(args)
    return _samples_of_phase(values, phases, size) if phases else train, valid, eval_iters * eval_size


def phase_transitions(args: Any) -> list[int]:
    """Returns the iterations at which the data changes, rising: as parsed or validated; empty for none.

    Raises:
        ConfigError: one is no number.
    """
    found = argument_values(args).get("phase_transition_iterations")
    if not found:
        return []
    if isinstance(found, str):
        where = f"--phase-transition-iterations {quoted(found)}"
        found = [parse_integer(item.text, f"{where}: {item.place}", at_least=1) for item in items_of(found)]
    return sorted(checked_integer("a phase transition", each, at_least=1) for each in found)


def _samples_of_phase(values: Mapping[str, Any], transitions: list[int], size: int) -> int:
    total = _required(values, "train_samples", "phases")
    if values.get("step_batch_size_schedule") is not None or values.get("rampup_batch_size") is not None:
        message = "--phase-transition-iterations needs a fixed batch size, found a schedule"
        raise ConfigError(message)
    bounds: list[int] = sorted([0, *(iteration * size for iteration in transitions), total])
    now = int(values.get("iteration") or 0) * size
    for begin, end in pairwise(bounds):
        if begin <= now < end:
            return end - begin
    message = f"expected an iteration before the end of the run at {bounds[-1]} samples, found one at {now}"
    raise ConfigError(message)


def _eval_points(values: Mapping[str, Any], num_steps: int | None) -> int:
    """Returns how often the run validates."""
    if values.get("skip_train"):
        return 1
    interval = int(values.get("eval_interval") or 0)
    if num_steps is None or interval == 0:
        missing = "--train-iters" if num_steps is None else "--eval-interval"
        message = f"expected {missing} to count validation samples, found none"
        raise ConfigError(message)
    skipped = int(values.get("start_eval_at_iter") or 0) // interval
    return max(0, num_steps // interval + 1 - skipped)


def _train_iters(args: Any) -> int | None:
    """Returns the steps of the run: as named, else those that its samples take; None if neither is named."""
    values = argument_values(args)
    if values.get("train_iters"):
        return checked_integer("--train-iters", values["train_iters"], at_least=1)
    total = int(values.get("train_samples") or 0)
    if not total:
        return None
    sizes = batch_sizes_of(args)
    if isinstance(sizes, BatchSizeRampup):
        grown = next(start for start in _starts(sizes) if start > sizes.rampup_samples)
        if total > grown:
            return sizes.step_of_position(grown) + (total - grown) // sizes.global_batch_size
        return sizes.step_of_position(grown)
    if values.get("step_batch_size_schedule") is None:
        return total // global_batch_size(args)
    return sizes.step_of_position(total - 1) + 1


def _starts(sizes: BatchSizes) -> Iterator[int]:
    """Yields the first position of each step."""
    start = 0
    while True:
        yield start
        start += sizes.batch_size(start)


def _required(values: Mapping[str, Any], name: str, reason: str) -> Any:
    if (value := values.get(name)) is None:
        message = f"expected --{name.replace('_', '-')} with {reason}, found none"
        raise ConfigError(message)
    return value
