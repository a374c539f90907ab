"""Batches for a training loop, through torch's DataLoader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.datasets.shortcuts import hook_of, overrides_of
from tokenloom.datasets.tensors import SampleBatch, whole
from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError
from tokenloom.loading.read_ahead import AnnouncingSampler, Batch, ReadAheadDataset, worker_context
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

_ALIGNMENT = 64


def build_dataloader(
    dataset: Any,
    sampler: Iterable[Batch],
    *,
    num_workers: int = 0,
    pin_memory: bool | None = None,
    persistent_workers: bool | None = None,
    prefetch_factor: int | None = None,
    multiprocessing_context: str | None = None,
    read_ahead_batches: int | None = None,
) -> Any:
    """Returns a `torch.utils.data.DataLoader` that yields one dict of tensors per micro-batch.

    A batch is filled by one kernel call, not collated from samples. The order is the sampler's, for any number of
    workers; to resume, give it a sampler with the consumed samples. Data in object storage are prefetched, see
    `loader_statistics`.

    Workers send batches through torch's queue. `ThreadLoader` sends nothing, and is several times as fast: prefer it
    unless your own Python code keeps a core busy.

    Args:
        dataset: gives samples by number, such as `GPTDataset`.
        sampler: yields the positions of each micro-batch, such as `MegatronPretrainingSampler`.
        num_workers: processes that read ahead; 0 reads in this process.
        pin_memory: whether batches lie in page-locked memory; by default, if CUDA is available.
        persistent_workers: whether workers outlive an epoch; by default, if there are any.
        prefetch_factor: batches that each worker reads ahead.
        multiprocessing_context: how workers start: "fork", "spawn" or "forkserver"; None for Python's default, and
            "forkserver" for data in object storage, which a forked worker cannot read.
        read_ahead_batches: batches announced to each worker, for data in object storage; None for about 1024 samples.
    """
    arguments = loader_arguments(
        dataset, sampler, num_workers=num_workers, pin_memory=pin_memory, read_ahead_batches=read_ahead_batches
    )
    if multiprocessing_context is not None:
        arguments["multiprocessing_context"] = multiprocessing_context
    persistent = num_workers > 0 if persistent_workers is None else persistent_workers
    data = require("torch.utils.data", extra="torch")
    return data.DataLoader(**arguments, persistent_workers=persistent, prefetch_factor=prefetch_factor)


def loader_arguments(
    dataset: Any,
    sampler: Iterable[Batch],
    *,
    num_workers: int,
    pin_memory: bool | None,
    read_ahead_batches: int | None = None,
) -> dict[str, Any]:
    """Returns the arguments of torch's DataLoader for the settings of `build_dataloader`."""
    check_dataset(dataset)
    torch = require("torch", extra="torch")
    context = worker_context(dataset, num_workers=num_workers)
    warn_of_resonance(dataset, sampler, stacklevel=4)
    if is_remote_dataset(dataset):
        sampler = AnnouncingSampler(sampler, num_workers=num_workers, num_ahead=read_ahead_batches)
        dataset = ReadAheadDataset(dataset, num_workers=num_workers)
    elif "__getitems__" in overrides_of(dataset).found and hook_of(dataset, "__getitems__") is not None:
        dataset = _OneByOne(dataset)  # its `__getitems__` is of a class whose hook a subclass overrides
    return {
        "dataset": dataset,
        "batch_sampler": sampler,
        "num_workers": num_workers,
        "collate_fn": collate,
        "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        "multiprocessing_context": context,
    }


def check_dataset(dataset: Any) -> None:
    """Raises a ConfigError for what is no dataset, such as a path."""
    if isinstance(dataset, (str, os.PathLike)) or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        message, hint = f"{dataset!r} is no dataset", "make one with `tokenloom.load`"
        if dataset is None:
            hint = "a dataset is None for a split without data, and on ranks without it"
        raise ConfigError(message, hint=hint)


def batches_of(
    dataset: Any, sampler: Iterable[Batch] | None, batch_size: int | None, rank: int | None, num_ranks: int | None
) -> Iterable[Batch]:
    """Returns the sampler of a loader: the given one, else one over the dataset's positions in order."""
    check_dataset(dataset)
    if sampler is not None:
        if (batch_size, rank, num_ranks) != (None, None, None):
            message = "a sampler excludes `batch_size`, `data_parallel_rank` and `data_parallel_size`: it decides them"
            raise ConfigError(message)
        if isinstance(sampler, (int, str, bytes)) or not hasattr(sampler, "__iter__"):
            message = f"{sampler!r} is no sampler, which yields the positions of each batch"
            raise ConfigError(message, hint="give `batch_size`, such as `batch_size=8`")
        return sampler
    if batch_size is None:
        raise ConfigError("neither `batch_size` nor a sampler given", hint="such as `batch_size=8`")
    if not isinstance(dataset, Sized):
        raise ConfigError(f"{type(dataset).__name__} has no `__len__`: give a sampler")
    if (rank, num_ranks) == (None, None):
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = f"{ranks.world_size} ranks of `torch.distributed` would all read the same samples: give "
            message += "`data_parallel_rank` and `data_parallel_size` beside `batch_size`"
            raise ConfigError(message, hint="without model parallelism, these are `get_rank()` and `get_world_size()`")
        rank, num_ranks = 0, 1
    if rank is None or num_ranks is None:
        raise ConfigError("`data_parallel_rank` and `data_parallel_size` need each other: give both or neither")
    size = checked_integer("batch_size", batch_size, at_least=1)
    found = MegatronPretrainingSampler(max(len(dataset), 1), 0, size, rank, num_ranks)
    if len(dataset) < size * num_ranks:
        message = f"{len(dataset)} samples make no batch of {size} for each of {num_ranks} ranks"
        raise ConfigError(message, hint="use smaller batches, shorter samples or more epochs")
    return found


class _OneByOne:
    """A dataset that is asked for each sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int | None) -> Any:
        return self.dataset[position]


def collate(samples: Any) -> Any:
    """Returns the tensors of a batch: as they are if the dataset filled them as a whole, else stacked by torch.

    Samples with a length of their own (`original_seq_len`) stay a list for a packing scheduler. In a worker process,
    tensors are in shared memory, from where nothing copies them again.
    """
    data = require("torch.utils.data", extra="torch")
    if isinstance(samples, SampleBatch):
        batch = whole(samples)
        return batch if data.get_worker_info() is None else _in_shared_memory(batch)
    if samples and isinstance(samples[0], Mapping) and "original_seq_len" in samples[0]:
        return samples
    return data.default_collate(samples)


def _in_shared_memory(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the tensors as views of one, which torch's queue sends as one file."""
    torch = require("torch", extra="torch")
    if any(not isinstance(tensor, torch.Tensor) or tensor.is_shared() for tensor in batch.values()):
        return batch  # torch has stacked these samples
    stored = {  # of an axis of stride 0, as of a mask that samples share, one entry
        name: tensor[tuple(slice(None if stride else 1) for stride in tensor.stride())]
        for name, tensor in batch.items()
    }
    starts = [0, *itertools.accumulate(-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in stored.values())]
    memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(starts[-1]))
    shared = {}
    for start, (name, tensor) in zip(starts, stored.items(), strict=False):
        view = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        shared[name] = view.copy_(tensor).expand(batch[name].shape)
    return shared
