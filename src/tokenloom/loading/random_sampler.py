"""Positions in a new random order each epoch: torch's, so that runs go on with the reference's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.protocols import HearsOfEpochs
from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import DataParallelSampler, count_chunks
from tokenloom.numbers import checked_integer
from tokenloom.optional import require


class MegatronPretrainingRandomSampler(DataParallelSampler):
    """Positions in a random order, in micro-batches, for one data-parallel rank; each epoch in another order.

    An iteration yields what is left of one epoch; the next one goes on with the epoch after it, without end. Only the
    last batch of an epoch moves `consumed_samples`: an iteration that was broken off begins again where it began, so a
    loader that reads ahead skips nothing. To resume, make a new sampler with the samples consumed by all ranks.

    All ranks yield equally many batches: an epoch is cut to whole chunks of `micro_batch_size * data_parallel_size`
    before it is shared out, and what it leaves out differs by epoch. (In the reference, without sharding, a rank may
    yield one batch more than another, and is then an epoch ahead of it.)

    What may change on resuming:
        - Without sharding, the order of an epoch is one for all ranks. With `global_batch_size`, micro-batch size and
          data-parallel size may change after any step. Without it, the order is the reference's, which depends on
          `total_samples % micro_batch_size`, and an epoch ends with its last whole chunk: resuming repeats and skips
          nothing as long as both stay the same, as they do where old and new chunks divide `total_samples`; if only the
          remainder stays, then within the first epoch.
        - With sharding, each rank shuffles its own range of positions; other ranks have other ranges. The data-parallel
          size may change between epochs, but within one, some samples would be repeated and others left out. The
          micro-batch size may change after any step, if an epoch keeps its length: with `global_batch_size`, it does.

    Example:
        >>> sampler = MegatronPretrainingRandomSampler(None, 10, 0, 2, 1, 2, data_sharding=False)
        >>> list(sampler), list(sampler), sampler.epoch
        ([[1, 5], [9, 8]], [[6, 2], [8, 3]], 2)

    Args:
        dataset: is told the epoch through its `set_epoch`, where it has that method; may be None.
        total_samples: positions in all, [0, total_samples).
        consumed_samples: samples already used, by all ranks, over all epochs; a multiple of
            `micro_batch_size * data_parallel_size`.
        micro_batch_size: samples per rank and step.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        data_sharding: each rank shuffles a range of positions of its own, and never sees those of others.
        seed: seed of the order, with the epoch; None gives the reference's order, whose only seed is the epoch.
        global_batch_size: cut epochs to whole global batches, and leave out by chance, so that the order depends
            neither on micro-batch size nor, without sharding, on data-parallel size; None is as the reference.

    Raises:
        ConfigError: a value is out of range, or there are too few samples for a single chunk.
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
        *,
        seed: int | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        super().__init__(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        self.dataset = dataset
        self.consumed_samples: int = checked_integer("consumed_samples", consumed_samples, at_least=0)
        self.data_sharding = data_sharding
        self.seed: int | None = None if seed is None else checked_integer("seed", seed, at_least=0)
        self.global_batch_size = global_batch_size
        chunk = self.micro_batch_times_data_parallel_size
        unit = chunk
        if global_batch_size is not None:
            unit = checked_integer("global_batch_size", global_batch_size, at_least=1)
            count_chunks(unit, chunk)
        self.samples_per_epoch: int = self.total_samples - self.total_samples % unit
        if not self.samples_per_epoch:
            message = f"expected at least {unit} samples, one batch of all ranks, found {self.total_samples}"
            raise ConfigError(message, hint="use smaller batches or fewer ranks")
        if self.consumed_samples % chunk:
            message = (
                f"expected consumed_samples to be a multiple of micro_batch_size * data_parallel_size = {chunk}, "
                f"found {self.consumed_samples}"
            )
            raise ConfigError(message, hint="choose sizes whose product divides the global batch size of the run")

    @property
    def epoch(self) -> int:
        """Epochs that are complete, which is the number of the next one to yield."""
        return self.consumed_samples // self.samples_per_epoch

    def __len__(self) -> int:
        """Batches that are left of the epoch. (The reference's length is `total_samples`.)"""
        left = self.samples_per_epoch - self.consumed_samples % self.samples_per_epoch
        return left // self.micro_batch_times_data_parallel_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other, to the end of the epoch.

        Costs time and 8 bytes per sample of an epoch; with sharding, of a rank's share.

        Raises:
            MissingExtraError: torch is not installed.
        """
        epoch = self.epoch
        if isinstance(self.dataset, HearsOfEpochs):
            self.dataset.set_epoch(epoch)
        positions = self._positions(epoch, self.consumed_samples % self.samples_per_epoch)
        for start in range(0, len(positions), self.micro_batch_size):
            stop = start + self.micro_batch_size
            batch: list[int] = positions[start:stop].tolist()
            if stop == len(positions):
                self.consumed_samples = (epoch + 1) * self.samples_per_epoch
            yield batch

    def _positions(self, epoch: int, offset: int) -> NDArray[np.int64]:
        """Returns the positions that are this rank's when all ranks have used `offset` samples of an epoch."""
        if self.data_sharding:
            share = self.samples_per_epoch // self.data_parallel_size
            order = self._permutation(share, epoch)
            return self.data_parallel_rank * share + order[offset // self.data_parallel_size :]
        if self.global_batch_size is None:
            num_shuffled = self.total_samples - self.total_samples % self.micro_batch_size
        else:
            num_shuffled = self.total_samples
        order = self._permutation(num_shuffled, epoch)
        return order[offset + self.data_parallel_rank : self.samples_per_epoch : self.data_parallel_size]

    def _permutation(self, length: int, epoch: int) -> NDArray[np.int64]:
        torch = require("torch", extra="torch")
        # torch's CPU generator uses 32 bits of its seed. A hash, not a sum: seed 1 is not seed 0 an epoch later.
        seed = epoch if self.seed is None else int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        permutation: NDArray[np.int64] = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()
        return permutation
