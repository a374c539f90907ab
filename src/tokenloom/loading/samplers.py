"""Samplers: the positions of each batch of a data-parallel rank. Positions are global, so resuming is a subtraction.

The order of a run is cut into chunks of one micro-batch per rank; rank r takes the r-th micro-batch of each chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizes, BatchSizeSchedule, count_chunks
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.order.sample_random import Purpose, SampleRandom
from tokenloom.overrides import Overrides, Uncalled


class DataParallelSampler:
    """The base of all samplers: number of positions, and this rank's micro-batch of each chunk."""

    def __init__(
        self, total_samples: int, micro_batch_size: int, data_parallel_rank: int, data_parallel_size: int
    ) -> None:
        self.total_samples: int = checked_integer(
            "total_samples", total_samples, at_least=1, hint="the dataset is empty"
        )
        self.micro_batch_size: int = checked_integer("micro_batch_size", micro_batch_size, at_least=1)
        self.data_parallel_size: int = checked_integer("data_parallel_size", data_parallel_size, at_least=1)
        self.data_parallel_rank: int = checked_integer(
            "data_parallel_rank", data_parallel_rank, at_least=0, below=self.data_parallel_size
        )
        self.micro_batch_times_data_parallel_size: int = self.micro_batch_size * self.data_parallel_size

    def __repr__(self) -> str:
        names = ("total_samples", "consumed_samples", "micro_batch_size", "data_parallel_rank", "data_parallel_size")
        shown = (f"{name}={vars(self)[name]}" for name in names if name in vars(self))
        return f"{type(self).__name__}({', '.join(shown)})"


class MegatronPretrainingSampler(DataParallelSampler):
    """Micro-batches of positions in order, for one data-parallel rank; all ranks together read a range.

    Chunks of `micro_batch_size * data_parallel_size` positions begin at `consumed_samples`; rank r takes the r-th
    micro-batch of each. To resume, make a new sampler with the samples consumed by all ranks together; micro-batch size
    and data-parallel size may change.

    Example:
        >>> sampler = MegatronPretrainingSampler(10, 4, 2, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[6, 7]]

    Args:
        total_samples: number of positions.
        consumed_samples: positions already used, by all ranks.
        micro_batch_size: samples per rank and micro-batch.
        data_parallel_rank, data_parallel_size: this rank, and the number of ranks.
        drop_last: drop the last, incomplete chunk; else ranks share it in order, and later ones may get a shorter or
            empty batch.
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
        super().__init__(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        hint = "no samples are left: build the dataset for a longer run"
        self.consumed_samples: int = checked_integer(
            "consumed_samples", consumed_samples, at_least=0, below=self.total_samples, hint=hint
        )
        self.drop_last = drop_last
        self._step: int = self.micro_batch_times_data_parallel_size  # samples of all ranks per batch

    def __len__(self) -> int:
        """Remaining batches of this rank. (The reference's length is `total_samples`.)"""
        return self._count_batches()

    def _count_batches(self) -> int:
        left = self.total_samples - self.consumed_samples
        return left // self._step if self.drop_last else -(-left // self._step)

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after `num_batches` batches of an iteration."""
        num_batches = checked_integer("num_batches", num_batches, at_least=0)
        return min(self.consumed_samples + num_batches * self._step, self.total_samples)

    def begin_at(self, position: int) -> None:
        """Makes later iterations begin at a position, up to `total_samples`."""
        hint = "the sampler has fewer samples: make it for a longer run"
        self.consumed_samples = checked_integer(
            "the position to begin at", position, at_least=0, below=self.total_samples + 1, hint=hint
        )

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of each micro-batch, beginning at `consumed_samples`."""
        length = self._count_batches() * self._step
        return self._micro_batches(self.consumed_samples, self.consumed_samples + length)

    def _micro_batches(self, start: int, stop: int) -> Iterator[list[int]]:
        """Yields this rank's micro-batches of the chunks in [start, stop)."""
        stop = min(stop, self.total_samples)
        for chunk in range(start, stop, self.micro_batch_times_data_parallel_size):
            first, last = self.get_start_end_idx()
            yield list(range(chunk, min(chunk + self.micro_batch_times_data_parallel_size, stop))[first:last])

    def get_start_end_idx(self) -> tuple[int, int]:
        """Returns this rank's range of positions in a chunk of one micro-batch per rank; a class may override it."""
        first = self.data_parallel_rank * self.micro_batch_size
        return first, first + self.micro_batch_size


class HybridCPMegatronPretrainingSampler(MegatronPretrainingSampler):
    """All micro-batches of this rank in a global batch as one list, for schedulers that place its samples anew.

    Order, resuming and further settings are those of `MegatronPretrainingSampler`.

    Example:
        >>> sampler = HybridCPMegatronPretrainingSampler(20, 0, 2, 8, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[2, 3, 6, 7], [10, 11, 14, 15]]

    Args:
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`. (The
            reference rounds other sizes down.)
        drop_last: drop the last, incomplete global batch; else ranks may get lists of different lengths.
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
        remedy = "override `get_start_end_idx`, which is asked for each micro-batch"
        uncalled = {"get_start_end_idx_global_batch": Uncalled(remedy, unless=("__iter__",))}
        Overrides.of(self, (*uncalled, "__iter__")).refuse_uncalled(uncalled)
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        self.global_batch_size: int = checked_integer("global_batch_size", global_batch_size, at_least=1)
        self.num_micro_batches: int = count_chunks(self.global_batch_size, self.micro_batch_times_data_parallel_size)
        self._step = self.global_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this rank's positions of each global batch, beginning at `consumed_samples`."""
        first, size = self.consumed_samples, self.global_batch_size
        for start in range(first, first + self._count_batches() * size, size):
            yield list(itertools.chain.from_iterable(self._micro_batches(start, start + size)))


class MegatronFullValidationSampler(MegatronPretrainingSampler):
    """Every position exactly once over the ranks, one at a time: rank r of R gets r, r + R, r + 2R, and so on.

    Ranks with one position fewer get None at the end, so that all run the same number of steps; `GPTDataset` gives a
    sample without loss for it. Add up losses by token, then, rather than averaging batches. A dataset that does not
    take None needs `pad=False`. (The reference's ranks yield unequal counts; its training loop restarts the shorter
    ones, which counts samples twice.)

    Example:
        >>> [list(MegatronFullValidationSampler(3, rank, 2)) for rank in range(2)]
        [[[0], [2]], [[1], [None]]]

    Args:
        total_samples: number of positions.
        data_parallel_rank, data_parallel_size: this rank, and the number of ranks.
        pad: pad with None to the same number of batches on all ranks; else counts are the reference's, and the caller
            must see that no rank waits for another.
    """

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = True
    ) -> None:
        super().__init__(total_samples, 0, 1, data_parallel_rank, data_parallel_size, drop_last=False)
        self.pad = pad

    def _count_batches(self) -> int:
        left = self.total_samples - self.consumed_samples - (0 if self.pad else self.data_parallel_rank)
        return -(-left // self.data_parallel_size)

    def __iter__(self) -> Iterator[list[int | None]]:  # type: ignore[override]  # None fills up
        """Yields one position, or None, at a time, from the first on."""
        for positions in super().__iter__():
            yield [*positions] or [None]


class BalancedSampler(MegatronPretrainingSampler):
    """Micro-batches of positions for one data-parallel rank; each global batch has the blend's mixture on every rank.

    Avoids ranks in step with the order of a blend, see `resonance.py`. A global batch has the positions that it has
    with `MegatronPretrainingSampler`, but is sorted by dataset and dealt sample by sample, beginning at another rank
    each time. Of n samples of a dataset in it, each of R ranks gets n / R, to within one; in R global batches with
    equal counts, from a multiple of R on, equally many.

    To resume, make a new sampler with the samples consumed at the end of a global batch; micro-batch size, ranks and
    batch sizes may change. Further settings are those of `MegatronPretrainingSampler`.

    Example:
        >>> from types import SimpleNamespace
        >>> order = SimpleNamespace(locate=lambda positions: (positions % 2, positions // 2))
        >>> blend = SimpleNamespace(order=order)  # even positions are of dataset 0, odd ones of dataset 1
        >>> [list(MegatronPretrainingSampler(8, 0, 1, rank, 2)) for rank in range(2)]
        [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]
        >>> [list(BalancedSampler(blend, 8, 0, 1, 4, rank, 2)) for rank in range(2)]
        [[[0], [1], [6], [7]], [[2], [3], [4], [5]]]

    Args:
        dataset: a blend, such as `BlendedDataset`.
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`; or
            a `BatchSizes`.
        seed: decides which ranks get the samples that cannot be divided.
    """

    def __init__(
        self,
        dataset: Any,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int | BatchSizes,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - as of the other samplers
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        if not hasattr(getattr(dataset, "order", None), "locate"):
            message = f"{type(dataset).__name__} is no blend of datasets"
            raise ConfigError(message, hint="of one dataset, all ranks see the same mixture with any sampler")
        self.seed: int = checked_integer("seed", seed, at_least=0, below=2**64)
        if isinstance(global_batch_size, (int, np.integer)):
            global_batch_size = BatchSizeSchedule.constant(int(global_batch_size))
        self.batch_sizes: BatchSizes = global_batch_size
        self.described_batch_sizes: str = repr(global_batch_size)  # text: states of loaders compare plain settings
        self._dataset = dataset
        next(self._steps(self.consumed_samples))  # checks the first size

    def _steps(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Yields (start, stop, size) of each step from a position on; the last one may be shorter than its size."""
        while start < self.total_samples:
            size = self.batch_sizes.batch_size(start)
            count_chunks(size, self.micro_batch_times_data_parallel_size, where=f" after {start} samples")
            yield start, min(start + size, self.total_samples), size
            start += size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other, beginning at `consumed_samples`."""
        chunk = self.micro_batch_times_data_parallel_size
        for start, stop, size in self._steps(self.consumed_samples):
            whole = start + (stop - start) // chunk * chunk
            mine = self._dealt(start, whole, size)
            for first in range(0, len(mine), self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]
            if whole < stop and not self.drop_last:
                yield from self._micro_batches(whole, stop)

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after `num_batches` batches, which must be whole steps."""
        left = checked_integer("num_batches", num_batches, at_least=0)
        chunk = self.micro_batch_times_data_parallel_size
        for start, stop, _ in self._steps(self.consumed_samples):
            in_step = (stop - start) // chunk if self.drop_last else -(-(stop - start) // chunk)
            if left and left < in_step and self.data_parallel_size > 1:
                message = f"no state within a step: {left} of {in_step} micro-batches from position {start} were read"
                raise ConfigError(message, hint="take the state of a loader between two steps")
            if not left or left < in_step:
                return start + left * chunk
            left -= in_step
        return self.total_samples

    def _dealt(self, start: int, stop: int, size: int) -> list[int]:
        """Returns this rank's positions of a global batch, rising."""
        ranks = self.data_parallel_size
        if ranks == 1:
            return list(range(start, stop))
        positions = np.arange(start, stop, dtype=np.int64)
        numbers, _ = self._dataset.order.locate(positions)
        by_dataset = positions[np.argsort(numbers, kind="stable")]
        block, step = divmod(start // size, ranks)
        first = (self.data_parallel_rank - _permutation(self.seed, block, ranks)[step]) % ranks
        mine: list[int] = np.sort(by_dataset[first::ranks]).tolist()
        return mine


@lru_cache(maxsize=4)
def _permutation(seed: int, block: int, length: int) -> NDArray[np.int64]:
    """Returns the rank at which dealing begins, for each global batch of a block: each rank once."""
    random = SampleRandom(seed, block, Purpose.DEALING)
    order = np.arange(length)
    for last in range(length - 1, 0, -1):
        other = random.below(last + 1)
        order[[last, other]] = order[[other, last]]
    return order


class MegatronPretrainingRandomSampler(DataParallelSampler):
    """Micro-batches of positions in random order, another one each epoch, for one data-parallel rank.

    An iteration yields the rest of an epoch, the next one the epoch after it, without end. Only the last batch of an
    epoch moves `consumed_samples`: an iteration that was broken off starts again where it began, so a loader that reads
    ahead skips nothing. To resume, make a new sampler with the samples consumed by all ranks.

    An epoch is cut to whole chunks of `micro_batch_size * data_parallel_size`, so all ranks yield equally many batches.
    (In the reference, without sharding, a rank may yield one more than another, and is then an epoch ahead.)

    What may change on resuming:
        - Without sharding, all ranks share one order. With `global_batch_size`, micro-batch size and data-parallel size
          may change after any step. Without it, the order is the reference's: `total_samples % micro_batch_size` and
          the length of an epoch must stay the same; within the first epoch, the remainder alone.
        - With sharding, each rank shuffles a range of its own: the data-parallel size may change between epochs only,
          and with `global_batch_size` the micro-batch size after any step.

    Example:
        >>> sampler = MegatronPretrainingRandomSampler(None, 10, 0, 2, 1, 2, data_sharding=False)
        >>> list(sampler), list(sampler), sampler.epoch
        ([[1, 5], [9, 8]], [[6, 2], [8, 3]], 2)

    Args:
        dataset: its `set_epoch`, if any, is called with the epoch; may be None.
        total_samples, micro_batch_size, data_parallel_rank, data_parallel_size: see `MegatronPretrainingSampler`.
        consumed_samples: samples already used, by all ranks, over all epochs; a multiple of
            `micro_batch_size * data_parallel_size`.
        data_sharding: each rank shuffles a range of positions of its own, and never sees those of others.
        seed: seed of the order, with the epoch; None for the reference's order, whose only seed is the epoch.
        global_batch_size: cut epochs to whole global batches, so that the order depends neither on micro-batch size
            nor, without sharding, on data-parallel size; None as in the reference.
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
        unit = chunk if global_batch_size is None else global_batch_size
        count_chunks(checked_integer("global_batch_size", unit, at_least=1), chunk)
        self.samples_per_epoch: int = self.total_samples - self.total_samples % unit
        if not self.samples_per_epoch:
            message = f"{self.total_samples} samples make no batch of {unit}, of all ranks"
            raise ConfigError(message, hint="use smaller batches or fewer ranks")
        if self.consumed_samples % chunk:
            unit_text = f"micro_batch_size * data_parallel_size = {chunk}"
            message = f"consumed_samples {self.consumed_samples} is no multiple of {unit_text}"
            raise ConfigError(message, hint="choose sizes whose product divides the global batch size of the run")

    @property
    def epoch(self) -> int:
        """Number of complete epochs, and of the next one to yield."""
        return self.consumed_samples // self.samples_per_epoch

    def __len__(self) -> int:
        """Remaining batches of the epoch. (The reference's length is `total_samples`.)"""
        left = self.samples_per_epoch - self.consumed_samples % self.samples_per_epoch
        return left // self.micro_batch_times_data_parallel_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of each micro-batch up to the end of the epoch; costs 8 bytes per sample of an epoch."""
        epoch = self.epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        positions = self._positions(epoch, self.consumed_samples % self.samples_per_epoch)
        for start in range(0, len(positions), self.micro_batch_size):
            stop = start + self.micro_batch_size
            batch: list[int] = positions[start:stop].tolist()
            if stop == len(positions):
                self.consumed_samples = (epoch + 1) * self.samples_per_epoch
            yield batch

    def _positions(self, epoch: int, offset: int) -> NDArray[np.int64]:
        """Returns this rank's positions of an epoch after `offset` samples of all ranks."""
        if self.data_sharding:
            share = self.samples_per_epoch // self.data_parallel_size
            order = self._permutation(share, epoch)
            return self.data_parallel_rank * share + order[offset // self.data_parallel_size :]
        num_left_out = self.total_samples % self.micro_batch_size if self.global_batch_size is None else 0
        order = self._permutation(self.total_samples - num_left_out, epoch)
        return order[offset + self.data_parallel_rank : self.samples_per_epoch : self.data_parallel_size]

    def _permutation(self, length: int, epoch: int) -> NDArray[np.int64]:
        torch = require("torch", extra="torch")
        # torch's CPU generator uses 32 bits of its seed. A hash, not a sum: seed 1 is not seed 0 an epoch later.
        seed = epoch if self.seed is None else int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        permutation: NDArray[np.int64] = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()
        return permutation
