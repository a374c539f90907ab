"""`build_dataloader`: torch's DataLoader over datasets that fill whole batches."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.datasets.shortcuts import hook_of, overrides_of
from tokenloom.datasets.tensors import SampleBatch, batch_tensors
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

    One kernel call fills a batch, without collating samples. Batches have the sampler's order for any number of
    workers; to resume, pass a sampler created with the number of consumed samples. Data in object storage are
    prefetched; `loader_statistics` returns statistics of these reads.

    Workers send batches through torch's queue. `ThreadLoader` needs no queue and is several times as fast: prefer it
    unless your own Python code keeps a core busy.

    Args:
        dataset: a dataset that returns samples by position, such as `GPTDataset`.
        sampler: yields the positions of each micro-batch, such as `MegatronPretrainingSampler`.
        num_workers: number of worker processes that read ahead; 0 reads in this process.
        pin_memory: whether batches are in page-locked memory; None means yes if CUDA is available.
        persistent_workers: whether workers outlive an epoch; None means yes if `num_workers` is positive.
        prefetch_factor: number of batches that each worker reads ahead; None for torch's default.
        multiprocessing_context: how workers start: "fork", "spawn" or "forkserver"; None for Python's default, or
            "forkserver" for data in object storage, which a forked worker cannot read.
        read_ahead_batches: number of later batches that each worker prefetches from object storage; None for about 1024
            samples over all workers.
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
    check_dataset(dataset)
    torch = require("torch", extra="torch")
    context = worker_context(dataset, num_workers=num_workers)
    warn_of_resonance(dataset, sampler, stacklevel=4)
    if is_remote_dataset(dataset):
        sampler = AnnouncingSampler(sampler, num_workers=num_workers, num_ahead=read_ahead_batches)
        dataset = ReadAheadDataset(dataset, num_workers=num_workers)
    elif "__getitems__" in overrides_of(dataset).found and hook_of(dataset, "__getitems__") is not None:
        dataset = _SampleBySample(dataset)  # a subclass overrides a hook that `__getitems__` does not call
    return {
        "dataset": dataset,
        "batch_sampler": sampler,
        "num_workers": num_workers,
        "collate_fn": collate,
        "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        "multiprocessing_context": context,
    }


def check_dataset(dataset: Any) -> None:
    """Raises a ConfigError if `dataset` is not a dataset, but a path or None, for example."""
    if isinstance(dataset, (str, os.PathLike)) or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        hint = "create a dataset with `tokenloom.load`"
        if dataset is None:
            hint = "a dataset is None for a split without data, and on ranks that do not build the dataset"
        raise ConfigError(f"{dataset!r} is not a dataset", hint=hint)


def checked_sampler(
    dataset: Any, sampler: Iterable[Batch] | None, batch_size: int | None, rank: int | None, num_ranks: int | None
) -> Iterable[Batch]:
    """Validates and returns `sampler`; if None, returns a sampler of all positions in order, `batch_size` per batch."""
    check_dataset(dataset)
    if sampler is not None:
        if (batch_size, rank, num_ranks) != (None, None, None):
            message = "`batch_size`, `data_parallel_rank` and `data_parallel_size` cannot be passed with a sampler"
            raise ConfigError(message, hint="leave out these arguments, or the sampler")
        if isinstance(sampler, (int, str, bytes)) or not hasattr(sampler, "__iter__"):
            message = f"{sampler!r} is not a sampler: it must yield lists of positions"
            raise ConfigError(message, hint="pass the number of samples per batch, such as `batch_size=8`")
        return sampler
    if batch_size is None:
        raise ConfigError("neither `batch_size` nor a sampler given", hint="pass `batch_size`, such as `batch_size=8`")
    if not isinstance(dataset, Sized):
        raise ConfigError(f"{type(dataset).__name__} has no `__len__`", hint="pass a sampler")
    if (rank, num_ranks) == (None, None):
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = f"{ranks.world_size} ranks of `torch.distributed` would all read the same samples"
            raise ConfigError(message, hint="pass `data_parallel_rank` and `data_parallel_size` with `batch_size`")
        rank, num_ranks = 0, 1
    if rank is None or num_ranks is None:
        raise ConfigError("`data_parallel_rank` and `data_parallel_size`: pass both or neither")
    size = checked_integer("batch_size", batch_size, at_least=1)
    made = MegatronPretrainingSampler(max(len(dataset), 1), 0, size, rank, num_ranks)
    if len(dataset) < size * num_ranks:
        message = f"{len(dataset)} samples are too few for a batch of {size} on each of {num_ranks} ranks"
        raise ConfigError(message, hint="use smaller batches, shorter samples or more epochs")
    return made


class _SampleBySample:
    """A dataset without `__getitems__`, so that torch reads one sample at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int | None) -> Any:
        return self.dataset[position]


def collate(samples: Any) -> Any:
    """Returns the tensors of a batch that the dataset filled in one call; stacks single samples with torch.

    Samples of different lengths (with `original_seq_len`) stay a list, for packing schedulers. In a worker process, the
    tensors of a filled batch are in shared memory, so that torch's queue does not copy them.
    """
    data = require("torch.utils.data", extra="torch")
    if isinstance(samples, SampleBatch):
        batch = batch_tensors(samples)
        return batch if data.get_worker_info() is None else _in_shared_memory(batch)
    if samples and isinstance(samples[0], Mapping) and "original_seq_len" in samples[0]:
        return samples
    return data.default_collate(samples)


def _in_shared_memory(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copies a batch into one shared-memory tensor, which torch's queue sends as one file; returns views of it."""
    torch = require("torch", extra="torch")
    if any(not isinstance(tensor, torch.Tensor) or tensor.is_shared() for tensor in batch.values()):
        return batch  # torch has stacked the samples
    stored = {  # only one entry along an axis with stride 0, such as the sample axis of a shared mask
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
