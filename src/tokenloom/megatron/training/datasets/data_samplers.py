"""`megatron.training.datasets.data_samplers`: which samples a rank takes, and the loader of a training loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.datasets.shortcuts import makes_batches
from tokenloom.datasets.tensors import SampleBatch, whole
from tokenloom.errors import ConfigError
from tokenloom.loading.balanced_sampler import BalancedSampler
from tokenloom.loading.read_ahead import AnnouncingSampler, ReadAheadDataset, worker_context
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.machine import open_files
from tokenloom.megatron.core.datasets.utils import Split
from tokenloom.megatron.training.datasets.rank_samplers import (
    HybridCPMegatronPretrainingSampler,
    MegatronFullValidationSampler,
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
    RandomSeedDataset,
)
from tokenloom.megatron.versions import reference_version

__all__ = [
    "HybridCPMegatronPretrainingSampler",
    "MegatronFullValidationSampler",
    "MegatronPretrainingRandomSampler",
    "MegatronPretrainingSampler",
    "RandomSeedDataset",
    "Split",
    "build_pretraining_data_loader",
    "get_args",
]

_NO_LOADER_WITHOUT_SAMPLES = (0, 20)
"""Since this version a dataset without samples has no loader; before, it is an error."""


def __getattr__(name: str) -> Any:
    """Returns `mpu`, which programs replace parts of; imported when it is asked for."""
    if name == "mpu":
        return _parallel_state()
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def get_args() -> Any:
    """Returns the arguments of the running Megatron program."""
    return import_module("megatron.training").get_args()


def _parallel_state() -> Any:
    return import_module("megatron.core.parallel_state")


def build_pretraining_data_loader(
    dataset: Any,
    consumed_samples: int,
    *,
    args: Any = None,
    data_parallel_rank: int | None = None,
    data_parallel_size: int | None = None,
) -> Any:
    """Returns the batches of a dataset for a training loop, as Megatron's arguments say; None without a dataset.

    Args:
        dataset: gives samples by number; its `split`, or `index_split`, says whether sizes of evaluation count. With
            the dataloader type "external" it is a loader itself, and returned.
        consumed_samples: samples already used, by all ranks.
        args: the settings by Megatron's names; None for those of the running Megatron program. `dataloader_type`,
            `micro_batch_size` and `num_workers` are needed, others where they apply.
        data_parallel_rank: this rank; None for what Megatron's parallel state says.
        data_parallel_size: ranks in all; likewise.

    Raises:
        ConfigError: the dataloader type is unknown, or the sampler has nothing to yield.
    """
    if dataset is None or (reference_version() >= _NO_LOADER_WITHOUT_SAMPLES and _is_empty(dataset)):
        return None
    settings = get_args() if args is None else args
    if settings.dataloader_type == "external":
        return dataset
    rank = _parallel_state().get_data_parallel_rank() if data_parallel_rank is None else data_parallel_rank
    size = _parallel_state().get_data_parallel_world_size() if data_parallel_size is None else data_parallel_size
    sampler = _sampler(dataset, consumed_samples, settings, rank, size)
    if not _takes_whole_batches(settings):  # a packing scheduler deals those anew
        warn_of_resonance(dataset, sampler)
    num_workers = settings.num_workers
    if _takes_whole_batches(settings):
        collate: Callable[[Any], Any] = _as_they_are
    else:
        collate = _collate if makes_batches(dataset) else torch.utils.data.default_collate
    context = worker_context(dataset, num_workers=num_workers)
    if is_remote_dataset(dataset):
        sampler = AnnouncingSampler(sampler, num_workers=num_workers)
        dataset = ReadAheadDataset(dataset, num_workers=num_workers)
    exit_signal = getattr(settings, "exit_signal", None) if getattr(settings, "exit_signal_handler", False) else None
    return torch.utils.data.DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=True,
        multiprocessing_context=context,
        persistent_workers=num_workers > 0,
        worker_init_fn=partial(_begin_worker, exit_signal=exit_signal) if num_workers > 0 else None,
        collate_fn=collate,
    )


def _is_empty(dataset: Any) -> bool:
    try:
        return len(dataset) == 0
    except TypeError:  # it has no length
        return False


def _takes_whole_batches(settings: Any) -> bool:
    return bool(getattr(settings, "hybrid_context_parallel", False))


@runtime_checkable
class _HasSplit(Protocol):
    """A dataset that says which split it is of, as blends do."""

    split: Any


@runtime_checkable
class _HasIndexSplit(Protocol):
    """A dataset that says which split its indices are of."""

    index_split: Any


def _split_name(dataset: Any) -> str | None:
    """Returns which split a dataset is of, by name: a member of either package's enumeration."""
    if isinstance(dataset, _HasSplit):
        split = dataset.split
    elif isinstance(dataset, _HasIndexSplit):
        split = dataset.index_split
    else:
        return None
    return split.name if isinstance(split, Enum) else None


def _sampler(dataset: Any, consumed_samples: int, settings: Any, rank: int, size: int) -> Any:
    """Returns the sampler that the settings name."""
    split = _split_name(dataset)
    micro_batch_size = settings.micro_batch_size
    if split in ("valid", "test"):
        micro_batch_size = getattr(settings, "eval_micro_batch_size", micro_batch_size)
    if split == "valid" and getattr(settings, "full_validation", False):
        return MegatronFullValidationSampler(len(dataset), rank, size)
    if settings.dataloader_type == "single" and _takes_whole_batches(settings):
        global_batch_size = settings.global_batch_size
        if split in ("valid", "test"):
            global_batch_size = getattr(settings, "eval_global_batch_size", global_batch_size)
        return HybridCPMegatronPretrainingSampler(
            len(dataset), consumed_samples, micro_batch_size, global_batch_size, rank, size
        )
    if settings.dataloader_type == "balanced":
        return BalancedSampler(
            dataset, len(dataset), consumed_samples, micro_batch_size, settings.global_batch_size, rank, size
        )
    if settings.dataloader_type == "single":
        return MegatronPretrainingSampler(len(dataset), consumed_samples, micro_batch_size, rank, size)
    if settings.dataloader_type == "cyclic":
        return MegatronPretrainingRandomSampler(
            dataset,
            len(dataset),
            consumed_samples,
            micro_batch_size,
            rank,
            size,
            data_sharding=settings.data_sharding,
        )
    message = f"{settings.dataloader_type} dataloader type is not supported"
    raise ConfigError(message, hint="choose `single`, `cyclic` or `external`")


def _as_they_are(samples: Any) -> Any:
    return samples


def _collate(samples: Any) -> Any:
    """Returns a batch as torch makes it of samples: of those that were filled as a whole, what was filled."""
    if isinstance(samples, SampleBatch):
        return whole(samples)
    return {name: _stacked([sample[name] for sample in samples]) for name in samples[0]}


def _stacked(values: list[Any]) -> Any:
    """Returns tensors as one with a batch axis: without a copy where they are the rows of one, in this order."""
    base = values[0]._base if isinstance(values[0], torch.Tensor) else None
    if base is not None and len(base) == len(values):
        expected = (base.storage_offset(), base.stride(0), base.shape[1:], base.stride()[1:])
        if all(_is_row(value, base, row, *expected) for row, value in enumerate(values)):
            return base
    return torch.utils.data.default_collate(values)


def _is_row(value: Any, base: Any, row: int, offset: int, step: int, shape: Any, stride: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value._base is base
        and (value.storage_offset(), value.shape, value.stride()) == (offset + row * step, shape, stride)
    )


def _begin_worker(_worker: int, *, exit_signal: Any) -> None:
    """Frees a worker of the GPUs that its parent has open, and has it end with the signal that ends the program."""
    for descriptor, path in open_files().items():
        if path.startswith("/dev/nvidia"):
            with suppress(OSError):
                os.close(descriptor)
    if exit_signal is not None:
        import_module("megatron.training.dist_signal_handler").DistributedSignalHandler(exit_signal).__enter__()
