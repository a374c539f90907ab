"""Global batches that grow during the first part of a run, and the sampler of runs whose global batches change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizes
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.numbers import checked_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeRampup(BatchSizes):
    """Which global batch size applies after how many consumed samples.

    The size grows in equal increments, evenly spread over the first samples of a run: the reference's
    `rampup_batch_size`. It is a function of the consumed samples alone, so resuming needs nothing else.

    Example:
        >>> rampup = BatchSizeRampup(
        ...     start_global_batch_size=4, batch_size_increment=4, rampup_samples=24, global_batch_size=12
        ... )
        >>> [rampup.batch_size(consumed) for consumed in (0, 8, 12, 20, 28)]
        [4, 4, 8, 8, 12]

    Attributes:
        start_global_batch_size: samples per step at first.
        batch_size_increment: samples by which it grows at a time.
        rampup_samples: samples after which it has grown up; 0 is at once.
        global_batch_size: samples per step from then on.

    Raises:
        ConfigError: a value is out of range, or increments do not lead from the first size to the last.
    """

    start_global_batch_size: int
    batch_size_increment: int
    rampup_samples: int
    global_batch_size: int

    def __post_init__(self) -> None:
        """Checks the settings."""
        checked_integer("start_global_batch_size", self.start_global_batch_size, at_least=1)
        checked_integer("batch_size_increment", self.batch_size_increment, at_least=1)
        checked_integer("rampup_samples", self.rampup_samples, at_least=0)
        checked_integer("global_batch_size", self.global_batch_size, at_least=self.start_global_batch_size)
        if (self.global_batch_size - self.start_global_batch_size) % self.batch_size_increment:
            message = (
                f"expected increments of {self.batch_size_increment} to lead from start_global_batch_size "
                f"{self.start_global_batch_size} to global_batch_size {self.global_batch_size}, found a remainder"
            )
            raise ConfigError(message, hint="choose an increment that divides the difference")

    def batch_size(self, consumed_samples: int) -> int:
        """Returns the samples of all ranks in the step that begins after so many consumed samples.

        Raises:
            ConfigError: `consumed_samples` is negative or no integer.
        """
        checked_integer("consumed_samples", consumed_samples, at_least=0)
        num_increments = (self.global_batch_size - self.start_global_batch_size) // self.batch_size_increment
        if not num_increments or not self.rampup_samples or consumed_samples > self.rampup_samples:
            return self.global_batch_size
        # Two roundings to double precision, as the reference: exact integers would grow a step earlier now and then.
        done = int(consumed_samples / (self.rampup_samples / num_increments))
        return self.start_global_batch_size + done * self.batch_size_increment

    def next_change(self, consumed_samples: int) -> int | None:
        """Returns the samples after which the size is another one than now; None if it stays.

        Raises:
            ConfigError: `consumed_samples` is negative or no integer.
        """
        size = self.batch_size(consumed_samples)
        if size == self.global_batch_size:
            return None
        grown_up = self.rampup_samples + 1
        return bisect_right(range(grown_up), size, lo=consumed_samples, key=self.batch_size)


class RampupPretrainingSampler(MegatronPretrainingSampler):
    """Positions in order, in micro-batches, under a global batch size that changes.

    The micro-batches and their order are those of `MegatronPretrainingSampler`; what the sizes decide is how many of
    them make a step. `global_batches` yields them step by step; iterating, as a loader does, one by one. Of the latter,
    each step has `rampup.num_micro_batches(…)`. To resume, make a new sampler with the samples consumed by all ranks;
    micro-batch size and data-parallel size may have changed. Wherever it begins, a step begins.

    Example:
        >>> rampup = BatchSizeRampup(
        ...     start_global_batch_size=4, batch_size_increment=4, rampup_samples=24, global_batch_size=12
        ... )
        >>> sampler = RampupPretrainingSampler(32, 8, 2, 0, 2, rampup=rampup)
        >>> list(sampler.global_batches())
        [[[8, 9]], [[12, 13], [16, 17]], [[20, 21], [24, 25]]]

    Args:
        total_samples: positions in all, [0, total_samples).
        consumed_samples: positions already used, by all ranks.
        micro_batch_size: samples per rank and micro-batch.
        data_parallel_rank: this rank.
        data_parallel_size: ranks in all.
        drop_last: leave out the last, incomplete global batch; else it is a shorter one, and its last chunk is shared
            as `MegatronPretrainingSampler` does.
        rampup: the size of each global batch: a `BatchSizeRampup`, a `BatchSizeSchedule` or other `BatchSizes`.
        decrease_batch_size_if_needed: use the next smaller size where micro-batches do not make up a global batch.

    Raises:
        ConfigError: a value is out of range, nothing is left to yield, or micro-batches do not make up a global batch
            of the rest of the run.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002 - as its base class
        *,
        rampup: BatchSizes,
        decrease_batch_size_if_needed: bool = False,
    ) -> None:
        super().__init__(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last
        )
        self.rampup = rampup
        self.decrease_batch_size_if_needed = decrease_batch_size_if_needed
        self._stages = list(self._plan(self.consumed_samples))

    def __len__(self) -> int:
        """Micro-batches that are left for this rank."""
        return self._count_batches()

    @property
    def _stop(self) -> int:
        """Where the last whole global batch ends."""
        return self._stages[-1].stop if self._stages else self.consumed_samples

    def begin_at(self, position: int) -> None:
        """Has later iterations begin after so many samples of all ranks, any number; after all, they yield nothing.

        Raises:
            ConfigError: there are fewer samples, or micro-batches do not make up a global batch of what is left.
        """
        position = self._checked_position(position)
        self._stages = list(self._plan(position))
        self.consumed_samples = position

    def _count_batches(self) -> int:
        stop = self._stop if self.drop_last else self.total_samples
        return -(-(stop - self.consumed_samples) // self.micro_batch_times_data_parallel_size)

    def global_batches(self) -> Iterator[list[list[int]]]:
        """Yields this rank's micro-batches of one global batch after the other, beginning at `consumed_samples`."""
        stages, stop = self._stages, self._stop
        for stage in stages:
            for start in stage:
                yield list(self._micro_batches(start, start + stage.step))
        if not self.drop_last and stop < self.total_samples:
            yield list(self._micro_batches(stop, self.total_samples))

    def _plan(self, start: int) -> Iterator[range]:
        """Yields the starts of the whole global batches that are left, a range for each size."""
        while start < self.total_samples:
            num_micro_batches = self.rampup.num_micro_batches(
                start,
                micro_batch_size=self.micro_batch_size,
                data_parallel_size=self.data_parallel_size,
                decrease_batch_size_if_needed=self.decrease_batch_size_if_needed,
            )
            size = num_micro_batches * self.micro_batch_times_data_parallel_size
            if start + size > self.total_samples:
                return
            num_steps = (self.total_samples - start) // size
            change = self.rampup.next_change(start)
            if change is not None:
                num_steps = min(num_steps, -(-(change - start) // size))
            yield range(start, start + num_steps * size, size)
            start += num_steps * size
