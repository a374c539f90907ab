"""`megatron.training.datasets.data_samplers`: which samples a rank takes, and the loader of a training loop."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.datasets.shortcuts import makes_batches
from tokenloom.datasets.tensors import SampleBatch, whole
from tokenloom.errors import ConfigError
from tokenloom.loading import samplers
from tokenloom.loading.read_ahead import AnnouncingSampler, ReadAheadDataset, worker_context
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.loading.samplers import BalancedSampler
from tokenloom.machine import open_files
from tokenloom.megatron.core.datasets.utils import Split
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


def _split_name(dataset: Any) -> str | None:
    """Returns which split a dataset is of, by name: a member of either package's enumeration."""
    split = getattr(dataset, "split", getattr(dataset, "index_split", None))
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
    if base is not None and len(base) == len(values) and all(map(_is_row, values, base)):
        return base
    return torch.utils.data.default_collate(values)


def _is_row(value: Any, row: Any) -> bool:
    same = isinstance(value, torch.Tensor) and value._base is row._base
    return same and (value.data_ptr(), value.shape, value.stride()) == (row.data_ptr(), row.shape, row.stride())


def _begin_worker(_worker: int, *, exit_signal: Any) -> None:
    """Frees a worker of the GPUs that its parent has open, and has it end with the signal that ends the program."""
    for descriptor, path in open_files().items():
        if path.startswith("/dev/nvidia"):
            with suppress(OSError):
                os.close(descriptor)
    if exit_signal is not None:
        import_module("megatron.training.dist_signal_handler").DistributedSignalHandler(exit_signal).__enter__()


# --- samplers ---------------------------------------------------------------------------------------------------------


class MegatronPretrainingSampler(samplers.MegatronPretrainingSampler):
    """That of `tokenloom`, whose length is all positions. `get_start_end_idx` is asked for each batch."""

    def __len__(self) -> int:
        """The positions in all, not the batches that are left."""
        return self.total_samples


class HybridCPMegatronPretrainingSampler(MegatronPretrainingSampler):
    """Positions in order, a whole global batch at once: all micro-batches that this rank has of it, in one list.

    A global batch that micro-batches do not make up is rounded down. `get_start_end_idx_global_batch` is asked for each
    global batch which of its positions are this rank's. Args are those of the class of `tokenloom`.

    Raises:
        ConfigError: a value is out of range, or nothing is left to yield.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - the reference's signature
    ) -> None:
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        self.global_batch_size: int = global_batch_size
        chunk = self.micro_batch_times_data_parallel_size
        self.num_micro_batches: int = global_batch_size // chunk
        if not self.num_micro_batches:
            message = (
                f"expected a global batch of at least one micro-batch of all ranks = {chunk}, found {global_batch_size}"
            )
            raise ConfigError(message)

    @property
    def _step(self) -> int:
        return self.num_micro_batches * self.micro_batch_times_data_parallel_size

    def get_start_end_idx_global_batch(self) -> tuple[list[int], list[int]]:
        """Returns of each micro-batch where in a global batch this rank's positions begin, and where they end."""
        chunk = self.micro_batch_times_data_parallel_size
        starts = [self.data_parallel_rank * self.micro_batch_size + i * chunk for i in range(self.num_micro_batches)]
        return starts, [start + self.micro_batch_size for start in starts]

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this rank's positions of one global batch after the other."""
        for first in range(self.consumed_samples, self.total_samples, self._step):
            batch = range(first, min(first + self._step, self.total_samples))
            if len(batch) < self._step and self.drop_last:
                return
            bounds = zip(*self.get_start_end_idx_global_batch(), strict=True)
            yield [position for start, stop in bounds for position in batch[start:stop]]


class MegatronFullValidationSampler(samplers.MegatronFullValidationSampler):
    """That of `tokenloom`, without padding: every position exactly once over the ranks; later ones may have fewer."""

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = False
    ) -> None:
        super().__init__(total_samples, data_parallel_rank, data_parallel_size, pad=pad)


class RandomSeedDataset(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types
    """A dataset whose sample k is made under the seed `seed + epoch + k` of torch, NumPy and Python.

    Args:
        dataset: gives samples by number.
        seed: seed of the run; None for that of Megatron's arguments.
    """

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.base_seed: int = get_args().seed if seed is None else seed
        self.curr_seed: int = self.base_seed
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Has samples be made under the seeds of another epoch."""
        self.curr_seed = self.base_seed + epoch

    def __getitem__(self, idx: int) -> Any:
        """Returns a sample, and leaves the global generators as making it leaves them."""
        seed = idx + self.curr_seed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global generator is what a dataset may draw from
        return self.dataset[idx]


class MegatronPretrainingRandomSampler(samplers.DataParallelSampler):
    """Positions in a random order, in micro-batches, for one data-parallel rank; each epoch in another order.

    Each batch moves `consumed_samples`, also one that a loader reads ahead. Without sharding a rank may yield one batch
    more than another.

    Args:
        dataset: is told the epoch, where it is a `RandomSeedDataset`.
        total_samples: positions in all, [0, total_samples).
        consumed_samples: samples already used, by all ranks, over all epochs.
        micro_batch_size: samples per rank and step.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        data_sharding: each rank shuffles a range of positions of its own, and never sees those of others.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_sharding: bool,  # noqa: FBT001 - the reference's signature
    ) -> None:
        super().__init__(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        self.dataset = dataset
        self.consumed_samples: int = consumed_samples
        self.data_sharding = data_sharding
        self.last_batch_size: int = self.total_samples % self.micro_batch_times_data_parallel_size

    def __len__(self) -> int:
        """The positions in all, not the batches that are left."""
        return self.total_samples

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other, to the end of the epoch.

        Raises:
            ConfigError: the samples do not make up a batch of all ranks, or those consumed are none of whole batches.
        """
        chunk = self.micro_batch_times_data_parallel_size
        per_epoch = self.total_samples - self.last_batch_size
        if not per_epoch:
            message = f"expected at least {chunk} samples, one batch of all ranks, found {self.total_samples}"
            raise ConfigError(message, hint="use smaller batches or fewer ranks")
        self.epoch: int
        self.epoch, offset = divmod(self.consumed_samples, per_epoch)
        if offset % chunk:
            message = f"expected consumed_samples of whole batches of {chunk}, found {self.consumed_samples}"
            raise ConfigError(message)
        if isinstance(self.dataset, RandomSeedDataset):
            self.dataset.set_epoch(self.epoch)
        positions = self._positions(offset)
        for start in range(0, len(positions) - self.micro_batch_size + 1, self.micro_batch_size):
            self.consumed_samples += chunk
            yield positions[start : start + self.micro_batch_size]

    def _positions(self, offset: int) -> list[int]:
        """Returns what is this rank's of the epoch when all ranks have used `offset` samples of it."""
        generator = torch.Generator().manual_seed(self.epoch)
        if self.data_sharding:
            share = self.total_samples // self.micro_batch_times_data_parallel_size * self.micro_batch_size
            order = torch.randperm(share, generator=generator) + self.data_parallel_rank * share
            own = order[offset // self.data_parallel_size :]
        else:
            order = torch.randperm(self.total_samples - self.total_samples % self.micro_batch_size, generator=generator)
            own = order[offset + self.data_parallel_rank :: self.data_parallel_size]
        positions: list[int] = own.tolist()
        return positions
