"""Which positions a data-parallel rank gets, batch by batch. Positions are global, so resuming is a subtraction."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.errors import ConfigError


class MegatronPretrainingSampler:
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
        if total_samples < 1:
            message = f"expected total_samples of at least 1, found {total_samples}"
            raise ConfigError(message, hint="the dataset is empty")
        if not 0 <= consumed_samples < total_samples:
            message = f"expected consumed_samples in [0, {total_samples}), found {consumed_samples}"
            raise ConfigError(message, hint="no samples are left: build the dataset for a longer run")
        if micro_batch_size < 1:
            message = f"expected micro_batch_size of at least 1, found {micro_batch_size}"
            raise ConfigError(message)
        if not 0 <= data_parallel_rank < data_parallel_size:
            message = f"expected data_parallel_rank in [0, {data_parallel_size}), found {data_parallel_rank}"
            raise ConfigError(message)
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = data_parallel_rank
        self.data_parallel_size = data_parallel_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Batches that are left for this rank. (The reference's length is `total_samples`.)"""
        remaining = self.total_samples - self.consumed_samples
        chunk = self.micro_batch_size * self.data_parallel_size
        return remaining // chunk if self.drop_last else -(-remaining // chunk)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of one micro-batch after the other; starting again begins at `consumed_samples`."""
        chunk = self.micro_batch_size * self.data_parallel_size
        for number in range(len(self)):
            start = self.consumed_samples + number * chunk + self.data_parallel_rank * self.micro_batch_size
            yield list(range(min(start, self.total_samples), min(start + self.micro_batch_size, self.total_samples)))
