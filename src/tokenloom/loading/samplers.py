"""Samplers, which yield the positions of each batch of a data-parallel rank.

Samplers cut the positions of a run into chunks of one micro-batch per rank; rank r reads the r-th micro-batch of each
chunk. Positions are global, so a run resumes from the number of consumed samples, with any number of ranks.
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
    """The base class of all samplers, which validates their common arguments."""

    def __init__(
        self, total_samples: int, micro_batch_size: int, data_parallel_rank: int, data_parallel_size: int
    ) -> None:
        self.total_samples: int = checked_integer("total_samples", total_samples, at_least=1, hint="dataset is empty")
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
    """A sampler that yields one rank's micro-batches of positions in order; all ranks together read each position once.

    Chunks of `micro_batch_size * data_parallel_size` positions start at `consumed_samples`; rank r reads the r-th
    micro-batch of each chunk. To resume, create a sampler with the number of samples that all ranks have consumed;
    micro-batch size and data-parallel size may change.

    Example:
        >>> sampler = MegatronPretrainingSampler(10, 4, 2, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[6, 7]]

    Args:
        total_samples: number of positions.
        consumed_samples: number of samples that all ranks together have already consumed.
        micro_batch_size: samples per micro-batch of a rank.
        data_parallel_rank, data_parallel_size: this rank, and the number of ranks.
        drop_last: drop an incomplete last chunk; otherwise, the last ranks may get a shorter or empty batch.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - Megatron's signature
    ) -> None:
        super().__init__(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        self.consumed_samples: int = checked_integer(
            "consumed_samples", consumed_samples, at_least=0, below=self.total_samples, hint="no samples are left"
        )
        self.drop_last = drop_last
        self._step: int = self.micro_batch_times_data_parallel_size  # samples of all ranks per batch

    def __len__(self) -> int:
        """Returns the number of remaining batches of this rank; Megatron's sampler returns `total_samples`."""
        return self._count_batches()

    def _count_batches(self) -> int:
        left = self.total_samples - self.consumed_samples
        return left // self._step if self.drop_last else -(-left // self._step)

    def position_after(self, num_batches: int) -> int:
        """Returns the number of samples that all ranks together have consumed after `num_batches` batches per rank."""
        num_batches = checked_integer("num_batches", num_batches, at_least=0)
        return min(self.consumed_samples + num_batches * self._step, self.total_samples)

    def begin_at(self, position: int) -> None:
        """Makes later iterations start at `position`, which is at most `total_samples`."""
        hint = "the sampler has fewer samples: create it with a larger `total_samples`"
        self.consumed_samples = checked_integer(
            "position", position, at_least=0, below=self.total_samples + 1, hint=hint
        )

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of each micro-batch, starting at `consumed_samples`."""
        length = self._count_batches() * self._step
        return self._micro_batches(self.consumed_samples, self.consumed_samples + length)

    def _micro_batches(self, start: int, stop: int) -> Iterator[list[int]]:
        stop = min(stop, self.total_samples)
        for chunk in range(start, stop, self.micro_batch_times_data_parallel_size):
            first, last = self.get_start_end_idx()
            yield list(range(chunk, min(chunk + self.micro_batch_times_data_parallel_size, stop))[first:last])

    def get_start_end_idx(self) -> tuple[int, int]:
        """Returns (start, stop), the range of this rank's indices in a chunk; subclasses may override this method."""
        first = self.data_parallel_rank * self.micro_batch_size
        return first, first + self.micro_batch_size


class HybridCPMegatronPretrainingSampler(MegatronPretrainingSampler):
    """A sampler that yields all of a rank's positions in a global batch as one list, for packing schedulers.

    Order, resuming and other arguments are the same as in `MegatronPretrainingSampler`.

    Example:
        >>> sampler = HybridCPMegatronPretrainingSampler(20, 0, 2, 8, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[2, 3, 6, 7], [10, 11, 14, 15]]

    Args:
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`.
        drop_last: drop an incomplete last global batch; otherwise ranks may get lists of different lengths.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - Megatron's signature
    ) -> None:
        remedy = "override `get_start_end_idx`, which is called for each micro-batch"
        uncalled = {"get_start_end_idx_global_batch": Uncalled(remedy, unless=("__iter__",))}
        Overrides.of(self, (*uncalled, "__iter__")).refuse_uncalled(uncalled)
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        self.global_batch_size: int = checked_integer("global_batch_size", global_batch_size, at_least=1)
        self.num_micro_batches: int = count_chunks(self.global_batch_size, self.micro_batch_times_data_parallel_size)
        self._step = self.global_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        first, size = self.consumed_samples, self.global_batch_size
        for start in range(first, first + self._count_batches() * size, size):
            yield list(itertools.chain.from_iterable(self._micro_batches(start, start + size)))


class MegatronFullValidationSampler(MegatronPretrainingSampler):
    """A sampler that yields each position exactly once over all ranks, one per batch: rank r of R reads r, r + R, …

    Ranks with one position fewer yield None at the end, so that all ranks run the same number of steps. For None,
    `GPTDataset` returns a sample without loss. Sum losses over tokens instead of averaging over batches. Datasets that
    do not accept None need `pad=False`. (In Megatron, ranks have unequal numbers of batches; some samples count twice.)

    Example:
        >>> [list(MegatronFullValidationSampler(3, rank, 2)) for rank in range(2)]
        [[[0], [2]], [[1], [None]]]

    Args:
        total_samples, data_parallel_rank, data_parallel_size: see `MegatronPretrainingSampler`.
        pad: pad with None to the same number of batches on all ranks; with `pad=False`, the caller must ensure that no
            rank waits for another rank.
    """

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = True
    ) -> None:
        super().__init__(total_samples, 0, 1, data_parallel_rank, data_parallel_size, drop_last=False)
        self.pad = pad

    def _count_batches(self) -> int:
        left = self.total_samples - self.consumed_samples - (0 if self.pad else self.data_parallel_rank)
        return -(-left // self.data_parallel_size)

    def __iter__(self) -> Iterator[list[int | None]]:  # type: ignore[override]  # None is padding
        for positions in super().__iter__():
            yield [*positions] or [None]


class BalancedSampler(MegatronPretrainingSampler):
    """A sampler that gives every rank the mixture of the blend in each global batch.

    With other samplers, ranks can read different mixtures; see `resonance.py`. A global batch has the same positions as
    with `MegatronPretrainingSampler`, but sorted by dataset and dealt to ranks in turn. If a dataset has n samples in a
    global batch, each of R ranks gets n / R of them, rounded up or down.

    To resume, create a sampler with the number of samples consumed at the end of a global batch; the micro-batch size,
    the batch sizes and the number of ranks may change. Other arguments are as in `MegatronPretrainingSampler`.

    Example:
        >>> from types import SimpleNamespace
        >>> order = SimpleNamespace(locate=lambda positions: (positions % 2, positions // 2))
        >>> blend = SimpleNamespace(order=order)  # even positions belong to dataset 0, odd positions to dataset 1
        >>> [list(MegatronPretrainingSampler(8, 0, 1, rank, 2)) for rank in range(2)]
        [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]
        >>> [list(BalancedSampler(blend, 8, 0, 1, 4, rank, 2)) for rank in range(2)]
        [[[0], [1], [6], [7]], [[2], [3], [4], [5]]]

    Args:
        dataset: a blend, such as `BlendedDataset`.
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`; or
            a `BatchSizes`.
        seed: seed for choosing the ranks that get one sample more.
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
        drop_last: bool = True,  # noqa: FBT001, FBT002 - as in the other samplers
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        if not hasattr(getattr(dataset, "order", None), "locate"):
            raise ConfigError(f"{type(dataset).__name__} is not a blend", hint="use `MegatronPretrainingSampler`")
        self.seed: int = checked_integer("seed", seed, at_least=0, below=2**64)
        if isinstance(global_batch_size, (int, np.integer)):
            global_batch_size = BatchSizeSchedule.constant(int(global_batch_size))
        self.batch_sizes: BatchSizes = global_batch_size
        self.described_batch_sizes: str = repr(global_batch_size)  # loader states compare plain values, such as text
        self._dataset = dataset
        next(self._steps(self.consumed_samples))  # validates the first batch size

    def _steps(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Yields (start, stop, size) of each step from position `start`; the last step may be shorter than its size."""
        while start < self.total_samples:
            size = self.batch_sizes.batch_size(start)
            count_chunks(size, self.micro_batch_times_data_parallel_size, where=f" after {start} samples")
            yield start, min(start + size, self.total_samples), size
            start += size

    def __iter__(self) -> Iterator[list[int]]:
        chunk = self.micro_batch_times_data_parallel_size
        for start, stop, size in self._steps(self.consumed_samples):
            whole = start + (stop - start) // chunk * chunk
            mine = self._balanced(start, whole, size)
            for first in range(0, len(mine), self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]
            if whole < stop and not self.drop_last:
                yield from self._micro_batches(whole, stop)

    def position_after(self, num_batches: int) -> int:
        """Returns how many samples all ranks have consumed after `num_batches` batches each; these must end a step."""
        left = checked_integer("num_batches", num_batches, at_least=0)
        chunk = self.micro_batch_times_data_parallel_size
        for start, stop, _ in self._steps(self.consumed_samples):
            in_step = (stop - start) // chunk if self.drop_last else -(-(stop - start) // chunk)
            if left and left < in_step and self.data_parallel_size > 1:
                message = f"no state within a step: {left} of {in_step} micro-batches were read since position {start}"
                raise ConfigError(message, hint="save the state of a loader between two steps")
            if not left or left < in_step:
                return start + left * chunk
            left -= in_step
        return self.total_samples

    def _balanced(self, start: int, stop: int, size: int) -> list[int]:
        """Returns the positions of the global batch [start, stop) that are dealt to this rank, ascending."""
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
    """Returns a permutation: the rank that gets the first sample, for each of `length` global batches in a block."""
    random = SampleRandom(seed, block, Purpose.DEALING)
    order = np.arange(length)
    for last in range(length - 1, 0, -1):
        other = random.below(last + 1)
        order[[last, other]] = order[[other, last]]
    return order


class MegatronPretrainingRandomSampler(DataParallelSampler):
    """A sampler that yields one rank's micro-batches of positions in random order, shuffled anew each epoch.

    An iteration yields the rest of the current epoch; the next iteration yields the next epoch. Only the last batch of
    an epoch advances `consumed_samples`: after an interrupted iteration, the next iteration yields the same batches
    again. So reading ahead skips no sample. To resume, pass the number of samples that all ranks have consumed.

    An epoch is cut to whole chunks of `micro_batch_size * data_parallel_size`, so all ranks yield the same number of
    batches. (In Megatron, without sharding, a rank may yield one batch more than others, and is then an epoch ahead.)

    What may change on resuming:
        - Without sharding, all ranks share one order. If `global_batch_size` is given, micro-batch size and number of
          ranks may change after any step. If None, the order is Megatron's: `total_samples % micro_batch_size` must not
          change, and after the first epoch, the length of an epoch must not change either.
        - With sharding, each rank shuffles its own range. The data-parallel size may change only between epochs. If
          `global_batch_size` is given, the micro-batch size may change after any step.

    Example:
        >>> sampler = MegatronPretrainingRandomSampler(None, 10, 0, 2, 1, 2, data_sharding=False)
        >>> list(sampler), list(sampler), sampler.epoch
        ([[1, 5], [9, 8]], [[6, 2], [8, 3]], 2)

    Args:
        dataset: None, or an object whose method `set_epoch`, if it has this method, is called with the epoch.
        total_samples, micro_batch_size, data_parallel_rank, data_parallel_size: see `MegatronPretrainingSampler`.
        consumed_samples: samples that all ranks have consumed in all epochs; a multiple of
            `micro_batch_size * data_parallel_size`.
        data_sharding: whether each rank shuffles its own range of positions, and reads only this range.
        seed: seed for shuffling, combined with the epoch; None for Megatron's order, whose only seed is the epoch.
        global_batch_size: cuts epochs to whole global batches, so that the order depends neither on micro-batch size
            nor, without sharding, on data-parallel size; None cuts epochs to whole chunks.
    """

    def __init__(
        self,
        dataset: Any,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_sharding: bool,  # noqa: FBT001 - Megatron's signature
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
            message = f"{self.total_samples} samples are too few for a batch of {unit} over all ranks"
            raise ConfigError(message, hint="use smaller batches or fewer ranks")
        if self.consumed_samples % chunk:
            message = f"consumed_samples {self.consumed_samples}: not a multiple of micro_batch_size * "
            raise ConfigError(f"{message}data_parallel_size = {chunk}", hint="choose sizes whose product divides it")

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0: the number of completed epochs."""
        return self.consumed_samples // self.samples_per_epoch

    def __len__(self) -> int:
        """Returns the number of batches left in the epoch; Megatron's sampler returns `total_samples`."""
        left = self.samples_per_epoch - self.consumed_samples % self.samples_per_epoch
        return left // self.micro_batch_times_data_parallel_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of each micro-batch until the end of the epoch; needs 8 bytes per sample of an epoch."""
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
        """Returns the positions of an epoch that this rank reads after all ranks have consumed `offset` samples."""
        if self.data_sharding:
            share = self.samples_per_epoch // self.data_parallel_size
            order = self._permutation(share, epoch)
            return self.data_parallel_rank * share + order[offset // self.data_parallel_size :]
        num_unused = self.total_samples % self.micro_batch_size if self.global_batch_size is None else 0
        order = self._permutation(self.total_samples - num_unused, epoch)
        return order[offset + self.data_parallel_rank : self.samples_per_epoch : self.data_parallel_size]

    def _permutation(self, length: int, epoch: int) -> NDArray[np.int64]:
        torch = require("torch", extra="torch")
        # torch uses 32 bits of a CPU seed. A hash, because in a sum, seed 1 in epoch n equals seed 0 in epoch n + 1.
        seed = epoch if self.seed is None else int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        permutation: NDArray[np.int64] = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()
        return permutation
