"""Positions of a blend dealt so that every rank sees the mixture of the blend; which global batch has which stays.

The order of a blend is nearly periodic. Where its period and `micro_batch_size * data_parallel_size` are in step,
dealing micro-batches by turns gives a rank the same datasets all run long: of two datasets of equal weight, each of two
ranks would read one. Here a global batch is sorted by dataset and dealt sample by sample, beginning at another rank
each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizes, BatchSizeSchedule
from tokenloom.loading.samplers import MegatronPretrainingSampler, count_chunks
from tokenloom.numbers import checked_integer
from tokenloom.order.sample_random import Purpose, SampleRandom


@runtime_checkable
class Locates(Protocol):
    """What of a `BlendOrder` is asked here."""

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns which dataset gives each sample, and which of its samples that is."""
        ...


@runtime_checkable
class Blended(Protocol):
    """A dataset that knows which of several datasets gives each sample."""

    @property
    def order(self) -> Locates:
        """Says which."""
        ...


class BalancedSampler(MegatronPretrainingSampler):
    """Positions in micro-batches for one data-parallel rank, such that each global batch has the blend on every rank.

    A global batch has the positions that it has with `MegatronPretrainingSampler`; only which rank, and which
    micro-batch, takes them differs. Of each dataset of a blend, a rank gets n / R samples of a global batch that has n
    for R ranks, to within one; which ranks get that one changes such that in R global batches with equal counts, from
    a multiple of R on, all ranks get equally many. So shares do not drift apart either where a rank has but few samples
    of a global batch.

    A function of the settings and the position where a global batch begins. To resume, make a new sampler with the
    samples consumed at the end of a global batch; micro-batch size, ranks and batch sizes may have changed.

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
        total_samples: positions in all, [0, total_samples).
        consumed_samples: positions already used, by all ranks.
        micro_batch_size: samples per rank and micro-batch.
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`; or
            what says how they change.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        drop_last: leave out the last, incomplete chunk of a micro-batch per rank; else the ranks share it in order.
        seed: of which ranks get the samples that cannot be divided.

    Raises:
        ConfigError: a value is out of range, nothing is left to yield, or the dataset is no blend.
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
        if not isinstance(dataset, Blended) or not isinstance(dataset.order, Locates):
            message = f"expected a blend of datasets, found {type(dataset).__name__}"
            raise ConfigError(message, hint="of one dataset, all ranks see the same mixture with any sampler")
        self.seed: int = checked_integer("seed", seed, at_least=0, below=2**64)
        if isinstance(global_batch_size, (int, np.integer)):
            global_batch_size = BatchSizeSchedule.constant(int(global_batch_size))
        self.batch_sizes: BatchSizes = global_batch_size
        self.described_batch_sizes: str = repr(global_batch_size)  # as a text, part of what states of loaders compare
        self._dataset = dataset
        self._step_size(self.consumed_samples)  # complains of a first size that micro-batches do not make up

    def _step_size(self, start: int) -> int:
        """Returns the size of the step that begins at a position."""
        size = self.batch_sizes.batch_size(start)
        count_chunks(size, self.micro_batch_times_data_parallel_size, where=f" after {start} samples")
        return size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other, beginning at `consumed_samples`."""
        start, chunk = self.consumed_samples, self.micro_batch_times_data_parallel_size
        while start < self.total_samples:
            size = self._step_size(start)
            stop = min(start + size, self.total_samples)
            whole = start + (stop - start) // chunk * chunk
            mine = self._dealt(start, whole, size)
            for first in range(0, len(mine), self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]
            if whole < stop and not self.drop_last:
                yield from self._micro_batches(whole, stop)
            start = stop

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after so many batches, which are those of whole steps.

        Raises:
            ConfigError: they end within a step, where what was consumed is no range of positions.
        """
        left = checked_integer("num_batches", num_batches, at_least=0)
        position, chunk = self.consumed_samples, self.micro_batch_times_data_parallel_size
        while left and position < self.total_samples:
            size = min(self._step_size(position), self.total_samples - position)
            in_step = size // chunk if self.drop_last else -(-size // chunk)
            if left < in_step and self.data_parallel_size > 1:
                message = f"expected whole steps, found {left} of {in_step} micro-batches of the step at {position}"
                raise ConfigError(message, hint="ask for the state of a loader between two steps")
            position += size if left >= in_step else left * chunk
            left -= min(left, in_step)
        return position

    def _dealt(self, start: int, stop: int, size: int) -> list[int]:
        """Returns this rank's positions of a global batch, in their order."""
        ranks = self.data_parallel_size
        if ranks == 1:
            return list(range(start, stop))
        positions = np.arange(start, stop, dtype=np.int64)
        numbers, _ = self._dataset.order.locate(positions)
        by_dataset = positions[np.argsort(numbers, kind="stable")]
        block, step = divmod(start // size, ranks)
        first = (self.data_parallel_rank - self._beginnings(block)[step]) % ranks
        mine: list[int] = np.sort(by_dataset[first::ranks]).tolist()
        return mine

    def _beginnings(self, block: int) -> NDArray[np.int64]:
        return _permutation(self.seed, block, self.data_parallel_size)


@lru_cache(maxsize=4)
def _permutation(seed: int, block: int, length: int) -> NDArray[np.int64]:
    """Returns the rank at which each global batch of a block is begun to be dealt: each rank once."""
    random = SampleRandom(seed, block, Purpose.DEALING)
    order = np.arange(length)
    for last in range(length - 1, 0, -1):
        other = random.below(last + 1)
        order[[last, other]] = order[[other, last]]
    return order
