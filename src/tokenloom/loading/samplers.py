"""Which positions a data-parallel rank gets, batch by batch. Positions are global, so resuming is a subtraction.

The order of a run is cut into chunks of one micro-batch per rank; rank r takes the r-th micro-batch of each chunk. The
samplers differ only in the order that they cut and in how much of it they hand out at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.overrides import Overrides, Uncalled


def count_chunks(global_batch_size: int, chunk_size: int, *, where: str = "") -> int:
    """Returns how many chunks, of one micro-batch per rank, make up a global batch.

    Raises:
        ConfigError: they do not make it up exactly, or there are none.
    """
    num_chunks, rest = divmod(global_batch_size, chunk_size)
    if rest or not num_chunks:
        message = (
            f"expected a global batch size that is a multiple of micro_batch_size * data_parallel_size = {chunk_size}, "
            f"found {global_batch_size}{where}"
        )
        raise ConfigError(message, hint="choose a micro-batch size and a number of ranks whose product divides it")
    return num_chunks


class DataParallelSampler:
    """What all samplers share: how many positions there are, and which micro-batch of each chunk is this rank's."""

    def __init__(
        self, total_samples: int, micro_batch_size: int, data_parallel_rank: int, data_parallel_size: int
    ) -> None:
        self.total_samples: int = checked_integer(
            "total_samples", total_samples, at_least=1, hint="the dataset is empty"
        )
        self.micro_batch_size: int = checked_integer("micro_batch_size", micro_batch_size, at_least=1)
        self.data_parallel_size: int = checked_integer("data_parallel_size", data_parallel_size, at_least=1)
        self.data_parallel_rank: int = checked_integer("data_parallel_rank", data_parallel_rank, at_least=0)
        if self.data_parallel_rank >= self.data_parallel_size:
            message = f"expected data_parallel_rank in [0, {self.data_parallel_size}), found {self.data_parallel_rank}"
            raise ConfigError(message)
        self.micro_batch_times_data_parallel_size: int = self.micro_batch_size * self.data_parallel_size

    def __repr__(self) -> str:
        names = ("total_samples", "consumed_samples", "micro_batch_size", "data_parallel_rank", "data_parallel_size")
        shown = (f"{name}={vars(self)[name]}" for name in names if name in vars(self))
        return f"{type(self).__name__}({', '.join(shown)})"

    def _checked_position(self, position: int) -> int:
        """Returns a position to begin at: that of a sample, or the end."""
        position = checked_integer("position", position, at_least=0)
        if position > self.total_samples:
            message = f"expected a position in [0, {self.total_samples}], found {position}"
            raise ConfigError(message, hint="the sampler has fewer samples: make it for a longer run")
        return position


class MegatronPretrainingSampler(DataParallelSampler):
    """Positions in order, in micro-batches, for one data-parallel rank.

    Chunks of `micro_batch_size * data_parallel_size` positions follow each other from `consumed_samples` on; rank r
    takes the r-th micro-batch of each. To resume, make a new sampler with the samples consumed by all ranks together;
    micro-batch size and data-parallel size may have changed.

    Example:
        >>> sampler = MegatronPretrainingSampler(10, 4, 2, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[6, 7]]

    Args:
        total_samples: positions in all, [0, total_samples).
        consumed_samples: positions already used, by all ranks.
        micro_batch_size: samples per rank and step.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        drop_last: leave out the last, incomplete chunk; else the ranks share what it holds in order, and later ranks
            may get a shorter or an empty batch.

    Raises:
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
        super().__init__(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        self.consumed_samples: int = checked_integer("consumed_samples", consumed_samples, at_least=0)
        if self.consumed_samples >= self.total_samples:
            message = f"expected consumed_samples in [0, {self.total_samples}), found {self.consumed_samples}"
            raise ConfigError(message, hint="no samples are left: build the dataset for a longer run")
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Batches that are left for this rank. (The reference's length is `total_samples`.)"""
        return self._count_batches()

    def _count_batches(self) -> int:
        return self._count_left(self.micro_batch_times_data_parallel_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other; starting again begins at `consumed_samples`."""
        length = self._count_batches() * self.micro_batch_times_data_parallel_size
        return self._micro_batches(self.consumed_samples, self.consumed_samples + length)

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after so many batches of an iteration."""
        return self._position_after(num_batches, self.micro_batch_times_data_parallel_size)

    def _position_after(self, num_batches: int, batch_size: int) -> int:
        num_batches = checked_integer("num_batches", num_batches, at_least=0)
        return min(self.consumed_samples + num_batches * batch_size, self.total_samples)

    def begin_at(self, position: int) -> None:
        """Has later iterations begin after so many samples of all ranks, any number; after all, they yield nothing.

        Raises:
            ConfigError: there are fewer samples.
        """
        self.consumed_samples = self._checked_position(position)

    def _count_left(self, size: int) -> int:
        """Returns how many batches of this size, of all ranks together, are left; the incomplete one if it is kept."""
        remaining = self.total_samples - self.consumed_samples
        return remaining // size if self.drop_last else -(-remaining // size)

    def _micro_batches(self, start: int, stop: int) -> Iterator[list[int]]:
        """Yields this rank's micro-batches of the chunks in [start, stop), as far as there are samples."""
        stop = min(stop, self.total_samples)
        for chunk in range(start, stop, self.micro_batch_times_data_parallel_size):
            first, last = self.get_start_end_idx()
            yield list(range(chunk, min(chunk + self.micro_batch_times_data_parallel_size, stop))[first:last])

    def get_start_end_idx(self) -> tuple[int, int]:
        """Returns which positions of a chunk, of one micro-batch per rank, are this rank's; a class may override it."""
        first = self.data_parallel_rank * self.micro_batch_size
        return first, first + self.micro_batch_size


class HybridCPMegatronPretrainingSampler(MegatronPretrainingSampler):
    """Positions in order, a whole global batch at once: all micro-batches that this rank has of it, in one list.

    For schedulers that place the samples of a global batch anew. The order is that of `MegatronPretrainingSampler`, and
    so is resuming.

    Example:
        >>> sampler = HybridCPMegatronPretrainingSampler(20, 0, 2, 8, data_parallel_rank=1, data_parallel_size=2)
        >>> list(sampler)
        [[2, 3, 6, 7], [10, 11, 14, 15]]

    Args:
        total_samples: positions in all, [0, total_samples).
        consumed_samples: positions already used, by all ranks.
        micro_batch_size: samples per rank and micro-batch.
        global_batch_size: samples of all ranks per step, a multiple of `micro_batch_size * data_parallel_size`.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        drop_last: leave out the last, incomplete global batch; else the ranks share its chunks as always, and may get
            lists of different lengths.

    Raises:
        ConfigError: a value is out of range, nothing is left to yield, or micro-batches do not make up a global batch.
            (The reference takes the next smaller multiple then.)
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

    def __len__(self) -> int:
        """Global batches that are left. (The reference's length is `total_samples`.)"""
        return self._count_batches()

    def _count_batches(self) -> int:
        return self._count_left(self.global_batch_size)

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after so many global batches of an iteration."""
        return self._position_after(num_batches, self.global_batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this rank's positions of one global batch after the other, beginning at `consumed_samples`."""
        first = self.consumed_samples
        for start in range(first, first + self._count_batches() * self.global_batch_size, self.global_batch_size):
            yield list(itertools.chain.from_iterable(self._micro_batches(start, start + self.global_batch_size)))


class MegatronFullValidationSampler(DataParallelSampler):
    """Every position exactly once over the ranks, one at a time: rank r of R gets r, r + R, r + 2R, and so on.

    Where R does not divide the number of positions, the later ranks have one fewer. All ranks must run the same number
    of steps, so theirs is filled up with the position None: `GPTDataset` gives a sample without loss for it. Losses are
    to be added up by token, then, not averaged by batch; a dataset that does not take None needs `pad=False`. (The
    reference's ranks yield unequal counts; its training loop takes the longest and lets the others begin again, which
    counts samples twice.)

    Example:
        >>> [list(MegatronFullValidationSampler(3, rank, 2)) for rank in range(2)]
        [[[0], [2]], [[1], [None]]]

    Args:
        total_samples: positions in all, [0, total_samples).
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        pad: give all ranks the same number of batches, with None as the position of those that are filled up. Without
            it, counts are as the reference's, and the caller sees to it that no rank waits for another.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = True
    ) -> None:
        super().__init__(total_samples, 1, data_parallel_rank, data_parallel_size)
        self.pad = pad
        self._first = 0

    def __len__(self) -> int:
        """Batches of this rank; with `pad`, of any rank."""
        return self._count_batches()

    def _count_batches(self) -> int:
        left = self.total_samples - self._first - (0 if self.pad else self.data_parallel_rank)
        return -(-left // self.data_parallel_size)

    def position_after(self, num_batches: int) -> int:
        """Returns the samples that all ranks have consumed after so many batches of an iteration."""
        num_batches = checked_integer("num_batches", num_batches, at_least=0)
        return min(self._first + num_batches * self.data_parallel_size, self.total_samples)

    def begin_at(self, position: int) -> None:
        """Has later iterations begin after so many samples of all ranks, any number; after all, they yield nothing.

        Raises:
            ConfigError: there are fewer samples.
        """
        self._first = self._checked_position(position)

    def __iter__(self) -> Iterator[list[int | None]]:
        """Yields one position, or None, at a time, from the first on."""
        first = self._first + self.data_parallel_rank
        for position in range(first, first + self._count_batches() * self.data_parallel_size, self.data_parallel_size):
            yield [position if position < self.total_samples else None]
