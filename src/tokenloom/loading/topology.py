"""Which step, rank and micro-batch read a position, as `MegatronPretrainingSampler` deals positions to ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizes
from tokenloom.loading.samplers import count_chunks
from tokenloom.numbers import checked_integer

Int64s = NDArray[np.int64]

_BEYOND_ANY_STEP = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How positions are dealt to steps, and within a step to micro-batches and ranks.

    A step of G samples begins at position s. Its micro-batch m on rank r holds the `micro_batch_size` positions from
    `s + (m * data_parallel_size + r) * micro_batch_size` on. This is about a run that has had these numbers from its
    first position on; of one that had others for a while, only the steps of that while are told wrong.

    Example:
        >>> from tokenloom.loading.batch_sizes import BatchSizeSchedule
        >>> sizes = BatchSizeSchedule.constant(8)
        >>> topology = Topology(batch_sizes=sizes, micro_batch_size=2, data_parallel_size=2)
        >>> topology.positions_of(1, rank=1).tolist()
        [10, 11, 14, 15]
        >>> topology.ranks(np.arange(8)).tolist()
        [0, 0, 1, 1, 0, 0, 1, 1]

    Attributes:
        batch_sizes: samples of each step, of all ranks.
        micro_batch_size: samples of a rank and micro-batch; None if that is not known.
        data_parallel_size: ranks in all; None if that is not known.

    Raises:
        ConfigError: a number is below 1, or one of the two is given without the other.
    """

    batch_sizes: BatchSizes
    micro_batch_size: int | None = None
    data_parallel_size: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        given = {"micro_batch_size": self.micro_batch_size, "data_parallel_size": self.data_parallel_size}
        for name, value in given.items():
            if value is not None:
                object.__setattr__(self, name, checked_integer(name, value, at_least=1))
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            [found] = [name for name, value in given.items() if value is not None]
            message = f"expected micro_batch_size and data_parallel_size, or neither, found {found} alone"
            raise ConfigError(message)

    @property
    def has_ranks(self) -> bool:
        """Whether ranks and micro-batches can be told."""
        return self.micro_batch_size is not None

    def steps(self, positions: Int64s) -> Int64s:
        """Returns the step that reads each position: int64[num_positions], steps from 0 on.

        Costs as much as there are changes of the batch size before the last position.

        Raises:
            ConfigError: a position is negative.
        """
        positions = _checked(positions)
        steps, _, sizes, offsets = self._stretches(positions)
        found: Int64s = steps + offsets // sizes
        return found

    def ranks(self, positions: Int64s) -> Int64s:
        """Returns the rank that reads each position: int64[num_positions].

        Raises:
            ConfigError: a position is negative, micro-batches do not make up a step, or ranks are not known.
        """
        _, ranks = self._dealt(positions)
        return ranks

    def micro_batches(self, positions: Int64s) -> Int64s:
        """Returns which micro-batch of its rank and step reads each position: int64[num_positions], from 0 on.

        Raises:
            ConfigError: a position is negative, micro-batches do not make up a step, or ranks are not known.
        """
        micro_batches, _ = self._dealt(positions)
        return micro_batches

    def positions_of(self, step: int, *, rank: int | None = None, micro_batch: int | None = None) -> Int64s:
        """Returns the positions that a step reads, or a rank or micro-batch of it: int64[num_positions], rising.

        Args:
            step: the step, from 0 on.
            rank: a rank; None for all.
            micro_batch: a micro-batch, the same of each rank; None for all.

        Raises:
            ConfigError: there is no such rank or micro-batch, or micro-batches do not make up the step.
        """
        start = self.batch_sizes.position_of_step(step)
        positions = np.arange(start, start + self.batch_sizes.batch_size(start), dtype=np.int64)
        if rank is None and micro_batch is None:
            return positions
        micro_batch_size, num_ranks = self._ranks_known()
        num_micro_batches = count_chunks(len(positions), micro_batch_size * num_ranks, where=f" in step {step}")
        dealt = positions.reshape(num_micro_batches, num_ranks, micro_batch_size)
        if micro_batch is not None:
            number = _checked_number("micro_batch", micro_batch, num_micro_batches, f"of step {step}")
            dealt = dealt[number : number + 1]
        if rank is not None:
            number = _checked_number("rank", rank, num_ranks, "of data_parallel_size")
            dealt = dealt[:, number : number + 1]
        return dealt.reshape(-1)

    def _dealt(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Returns micro-batches and ranks."""
        micro_batch_size, num_ranks = self._ranks_known()
        positions = _checked(positions)
        _, starts, sizes, offsets = self._stretches(positions)
        chunk = micro_batch_size * num_ranks
        if len(ragged := np.flatnonzero(sizes % min(chunk, _BEYOND_ANY_STEP))):
            place = int(ragged[0])
            count_chunks(int(sizes[place]), chunk, where=f" after {starts[place]} samples")
        micro_batches, within = np.divmod(offsets % sizes, chunk)
        return micro_batches, within // micro_batch_size

    def _stretches(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Returns of each position: the first step of its size, where that begins, the size, samples since then."""
        last = int(positions.max(initial=0))
        rows: list[tuple[int, int, int]] = []
        for stretch in self.batch_sizes.stretches():
            if rows and stretch[1] > last:
                break
            rows.append(stretch)
        first_steps, starts, sizes = np.array(rows, dtype=np.int64).T
        found = np.searchsorted(starts, positions, side="right") - 1
        return first_steps[found], starts[found], sizes[found], positions - starts[found]

    def _ranks_known(self) -> tuple[int, int]:
        if self.micro_batch_size is None or self.data_parallel_size is None:
            message = "expected micro_batch_size and data_parallel_size, where ranks are told, found neither"
            raise ConfigError(message)
        return self.micro_batch_size, self.data_parallel_size


def _checked(positions: Int64s) -> Int64s:
    positions = np.asarray(positions, dtype=np.int64)
    if len(positions) and (least := int(positions.min())) < 0:
        message = f"expected positions from 0 on, found {least}"
        raise ConfigError(message)
    return positions


def _checked_number(name: str, value: int, count: int, where: str) -> int:
    number = checked_integer(name, value, at_least=0)
    if number >= count:
        message = f"expected {name} in [0, {count}), as {where}, found {number}"
        raise ConfigError(message)
    return number
