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

    A batch costs one kernel call: it is filled as a whole, never collated from samples. The order is the sampler's,
    whatever the number of workers; to resume, give it a sampler with the consumed samples. Of data in object storage,
    what later batches need is fetched while earlier ones are used; `loader_statistics` tells how that went.

    Workers send batches through torch's queue. `ThreadLoader` sends nothing, and is several times as fast: prefer it
    unless Python code of your own holds a core.

    Args:
        dataset: gives samples by number, such as `GPTDataset`.
        sampler: yields the positions of one micro-batch after the other, such as `MegatronPretrainingSampler`.
        num_workers: processes that read ahead; 0 reads in this process.
        pin_memory: whether batches lie in page-locked memory; by default, where CUDA is available.
        persistent_workers: whether workers outlive an epoch; by default, where there are any.
        prefetch_factor: batches that each worker reads ahead.
        multiprocessing_context: how workers start: "fork", "spawn" or "forkserver"; None for the default of Python, and
            "forkserver" for data in object storage, which a forked worker cannot read.
        read_ahead_batches: batches that each worker hears of in advance, for data in object storage, whose budgets
        bound
            how much of them is fetched; None for about 1024 samples.
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
    """Returns what torch's DataLoader, or one that is made as it is, takes for the settings of `build_dataloader`."""
    check_dataset(dataset)
    torch = require("torch", extra="torch")
    context = worker_context(dataset, num_workers=num_workers)
    warn_of_resonance(dataset, sampler, stacklevel=4)
    if is_remote_dataset(dataset):
        sampler = AnnouncingSampler(sampler, num_workers=num_workers, num_ahead=read_ahead_batches)
        dataset = ReadAheadDataset(dataset, num_workers=num_workers)
    elif "__getitems__" in overrides_of(dataset).found and hook_of(dataset, "__getitems__") is not None:
        dataset = _OneByOne(dataset)  # that of a class which another one has changed since
    return {
        "dataset": dataset,
        "batch_sampler": sampler,
        "num_workers": num_workers,
        "collate_fn": collate,
        "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        "multiprocessing_context": context,
    }


def check_dataset(dataset: Any) -> None:
    """Raises a ConfigError where something is certainly no dataset."""
    message, hint = f"expected a dataset, found {dataset!r}", "make one with `tokenloom.load`"
    if isinstance(dataset, (str, os.PathLike)):
        message, hint = f"expected a dataset, found the text {os.fspath(dataset)!r}", "open it with `tokenloom.load`"
    elif dataset is None:
        hint = "what is built is None for a split without data, and on ranks without it"
    elif hasattr(dataset, "__getitem__") or hasattr(dataset, "batch"):
        return
    raise ConfigError(message, hint=hint)


def batches_of(
    dataset: Any,
    sampler: Iterable[Batch] | None,
    *,
    batch_size: int | None,
    data_parallel_rank: int | None,
    data_parallel_size: int | None,
) -> Iterable[Batch]:
    """Returns the sampler of a loader: the one that is given, else the dataset's positions in order."""
    check_dataset(dataset)
    if sampler is not None:
        names = ("batch_size", "data_parallel_rank", "data_parallel_size")
        for name, value in zip(names, (batch_size, data_parallel_rank, data_parallel_size), strict=True):
            if value is not None:
                message = f"a sampler and `{name}` exclude each other, found both"
                raise ConfigError(message, hint="the sampler decides how many samples a batch has, and whose they are")
        if isinstance(sampler, (int, str, bytes)) or not hasattr(sampler, "__iter__"):
            message = "expected a sampler, which yields the positions of one batch after the other, found "
            hint = f"write `batch_size={sampler!r}`" if isinstance(sampler, int) else "write `batch_size=8`"
            raise ConfigError(message + repr(sampler), hint=hint)
        return sampler
    if batch_size is None:
        message = "expected `batch_size` or a sampler, found neither"
        raise ConfigError(message, hint="such as `batch_size=8`")
    if not isinstance(dataset, Sized):
        message = f"expected a dataset that has `__len__` where there is no sampler, found {type(dataset).__name__}"
        raise ConfigError(message, hint="give a sampler, which yields what the dataset is asked for")
    if (data_parallel_rank, data_parallel_size) == (None, None):
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = "expected `data_parallel_rank` and `data_parallel_size` beside `batch_size`, found neither, and "
            message += f"{ranks.world_size} ranks of `torch.distributed`, all of which would read the same samples"
            hint = "where each rank reads its own samples, these are `torch.distributed`'s `get_rank()` and "
            raise ConfigError(message, hint=hint + "`get_world_size()`")
        data_parallel_rank, data_parallel_size = 0, 1
    if data_parallel_rank is None or data_parallel_size is None:
        missing = "data_parallel_rank" if data_parallel_rank is None else "data_parallel_size"
        message = f"expected `data_parallel_rank` and `data_parallel_size`, found no `{missing}`"
        raise ConfigError(message)
    size = checked_integer("batch_size", batch_size, at_least=1)
    found = MegatronPretrainingSampler(max(len(dataset), 1), 0, size, data_parallel_rank, data_parallel_size)
    if len(dataset) < size * data_parallel_size:
        each = "" if data_parallel_size == 1 else f" for each of {data_parallel_size} ranks"
        message = f"expected at least one batch of {size} samples{each}, found {len(dataset)} samples"
        raise ConfigError(message, hint="use smaller batches, or a dataset of more samples: shorter ones, more epochs")
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

    Samples that say their own length (`original_seq_len`), and may differ in it, stay a list for a packing scheduler.
    In a worker process, tensors are in shared memory, as torch's own are, from where nothing copies them again.
    """
    data = require("torch.utils.data", extra="torch")
    if isinstance(samples, SampleBatch):
        batch = whole(samples)
        return batch if data.get_worker_info() is None else _in_shared_memory(batch)
    if samples and isinstance(samples[0], Mapping) and "original_seq_len" in samples[0]:
        return samples
    return data.default_collate(samples)


def _in_shared_memory(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the tensors of a batch as views of one, which torch's queue sends as one file instead of one for each."""
    torch = require("torch", extra="torch")
    if any(not isinstance(tensor, torch.Tensor) or tensor.is_shared() for tensor in batch.values()):
        return batch  # torch has stacked these samples
    stored = {  # of an axis along which all are one, as samples share a constant mask, that one
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
