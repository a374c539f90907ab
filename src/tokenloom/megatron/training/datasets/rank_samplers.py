"""The samplers of `megatron.training.datasets.data_samplers`: which samples a rank takes."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenloom.errors import ConfigError
from tokenloom.loading import samplers


def _checked_total(total_samples: int) -> int:
    total = operator.index(total_samples)
    if total < 1:
        message = f"no sample to consume: {total}"
        raise ConfigError(message, hint="the dataset is empty")
    return total


class MegatronPretrainingSampler(samplers.MegatronPretrainingSampler):
    """Positions in order, in micro-batches, for one data-parallel rank; args are those of the class of `tokenloom`.

    `get_start_end_idx` is asked for each batch which of its positions are this rank's.

    Raises:
        TypeError: a value is no integer.
        ConfigError: a value is out of range, or nothing is left to yield.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - the reference's signature
    ) -> None:
        total, consumed = _checked_total(total_samples), operator.index(consumed_samples)
        if consumed >= total:
            message = f"no samples left to consume: {consumed}, {total}"
            raise ConfigError(message, hint="build the dataset for a longer run")
        super().__init__(
            total,
            consumed,
            operator.index(micro_batch_size),
            operator.index(data_parallel_rank),
            operator.index(data_parallel_size),
            drop_last,
        )

    def __len__(self) -> int:
        """The positions in all, not the batches that are left."""
        return self.total_samples


class HybridCPMegatronPretrainingSampler(MegatronPretrainingSampler):
    """Positions in order, a whole global batch at once: all micro-batches that this rank has of it, in one list.

    A global batch that micro-batches do not make up is rounded down. `get_start_end_idx_global_batch` is asked for each
    global batch which of its positions are this rank's. Args are those of the class of `tokenloom`.

    Raises:
        TypeError: a value is no integer.
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
        self.global_batch_size: int = operator.index(global_batch_size)
        self.num_micro_batches: int = self.global_batch_size // self.micro_batch_times_data_parallel_size

    @property
    def _step(self) -> int:
        """Positions that all ranks take at once."""
        return self.num_micro_batches * self.micro_batch_times_data_parallel_size

    def get_start_end_idx_global_batch(self) -> tuple[list[int], list[int]]:
        """Returns of each micro-batch where in a global batch this rank's positions begin, and where they end."""
        chunk = self.micro_batch_times_data_parallel_size
        starts = [self.data_parallel_rank * self.micro_batch_size + i * chunk for i in range(self.num_micro_batches)]
        return starts, [start + self.micro_batch_size for start in starts]

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this rank's positions of one global batch after the other."""
        step = self._step or self.total_samples  # of none at all the rest is the only, incomplete one
        for first in range(self.consumed_samples, self.total_samples, step):
            batch = list(range(first, min(first + step, self.total_samples)))
            if (len(batch) < step or not self._step) and self.drop_last:
                return
            starts, stops = self.get_start_end_idx_global_batch()
            yield [position for i in range(self.num_micro_batches) for position in batch[starts[i] : stops[i]]]

    def _count_batches(self) -> int:
        if not self._step:
            return 0 if self.drop_last else 1
        return super()._count_batches()


class MegatronFullValidationSampler(samplers.MegatronFullValidationSampler):
    """Every position exactly once over the ranks, one at a time; later ranks may have one fewer.

    Args are those of the class of `tokenloom`, whose `pad` is False here.
    """

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = False
    ) -> None:
        super().__init__(
            _checked_total(total_samples),
            operator.index(data_parallel_rank),
            operator.index(data_parallel_size),
            pad=pad,
        )


class RandomSeedDataset(Dataset):  # type: ignore[misc] # torch is not looked into
    """A dataset whose samples are each made under a seed of their own, of torch, NumPy and Python.

    The seed of sample k is `seed + epoch + k`.

    Args:
        dataset: gives samples by number.
        seed: seed of the run; None for that of Megatron's arguments.
    """

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.base_seed: int = _seed_of_megatron() if seed is None else seed
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
        TypeError: a value is no integer.
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
        super().__init__(
            _checked_total(total_samples),
            operator.index(micro_batch_size),
            operator.index(data_parallel_rank),
            operator.index(data_parallel_size),
        )
        self.dataset = dataset
        self.consumed_samples: int = operator.index(consumed_samples)
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
            message = (
                f"expected consumed_samples of whole batches of micro_batch_size * data_parallel_size = {chunk}, "
                f"found {self.consumed_samples} of epochs of {per_epoch}"
            )
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


def _seed_of_megatron() -> int:
    seed: int = import_module("megatron.training").get_args().seed
    return seed
