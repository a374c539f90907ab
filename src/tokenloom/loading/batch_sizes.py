"""Global batch sizes that change during a run, and the step, rank and micro-batch that read each position.

The global batch size depends only on the number of consumed samples. A step keeps the size with which it starts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, takewhile
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, items_of

Int64s = NDArray[np.int64]

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER, _SUFFIX = r"[0-9]{1,20}(?:\.[0-9]{1,20})?", "[KMBGTkmbgt]?"
_ITEM = re.compile(rf"(?P<threshold>{_NUMBER})(?P<suffix>{_SUFFIX}):(?P<size>{_NUMBER})(?P<size_suffix>{_SUFFIX})")
_LARGEST = 2**63 - 1
_EXAMPLE = "write `THRESHOLD:BATCH_SIZE` items, such as `0:768 250B:1536`"


def count_chunks(size: int, chunk: int, *, where: str = "") -> int:
    """Returns the number of chunks in a global batch; a chunk has one micro-batch of every rank."""
    num_chunks, rest = divmod(size, chunk)
    if rest or not num_chunks:
        message = f"global batch size {size}{where}: not a multiple of micro_batch_size * data_parallel_size = {chunk}"
        raise ConfigError(message, hint="choose sizes whose product divides the global batch size")
    return num_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """The global batch size of each step of a run: a `BatchSizeSchedule` or a `BatchSizeRampup`.

    Attributes:
        sizes: pairs (consumed samples, global batch size from this number on), ascending; the first pair starts at 0.
    """

    sizes: tuple[tuple[int, int], ...]

    def batch_size(self, consumed_samples: int) -> int:
        """Returns the global batch size of the step that starts after `consumed_samples` samples."""
        consumed_samples = checked_integer("consumed_samples", consumed_samples, at_least=0)
        return self.sizes[bisect_right(self.sizes, consumed_samples, key=itemgetter(0)) - 1][1]

    def num_micro_batches(
        self,
        consumed_samples: int,
        *,
        micro_batch_size: int,
        data_parallel_size: int,
        decrease_batch_size_if_needed: bool = False,
    ) -> int:
        """Returns the number of micro-batches per rank in the step that starts after `consumed_samples` samples.

        `decrease_batch_size_if_needed` rounds the size down to a multiple of `micro_batch_size * data_parallel_size`.
        """
        size = self.batch_size(consumed_samples)
        chunk = checked_integer("micro_batch_size", micro_batch_size, at_least=1)
        chunk *= checked_integer("data_parallel_size", data_parallel_size, at_least=1)
        if decrease_batch_size_if_needed and size >= chunk:
            return size // chunk
        return count_chunks(size, chunk, where=f" after {consumed_samples} samples")

    def position_of_step(self, step: int) -> int:
        """Returns the first position of a step; steps and positions count from 0 at the start of the run."""
        step = checked_integer("step", step, at_least=0)
        *_, (first_step, start, size) = takewhile(lambda phase: phase[0] <= step, self.phases())
        return start + (step - first_step) * size

    def step_of_position(self, position: int) -> int:
        """Returns the step that reads a position: the inverse of `position_of_step`."""
        position = checked_integer("position", position, at_least=0)
        *_, (first_step, start, size) = takewhile(lambda phase: phase[1] <= position, self.phases())
        return first_step + (position - start) // size

    def phases(self) -> Iterator[tuple[int, int, int]]:
        """Yields (first step, first position, global batch size) of each range of steps with the same batch size."""
        step = start = 0
        for (_, size), (change, _) in pairwise([*self.sizes, (_LARGEST, 0)]):
            if start < change:
                yield step, start, size
                num_steps = -(-(change - start) // size)
                step, start = step + num_steps, start + num_steps * size


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeSchedule(BatchSizes):
    """Global batch sizes that change at given numbers of consumed samples; Megatron's `--step-batch-size-schedule`.

    Example:
        >>> schedule = BatchSizeSchedule.parse("0:4 1.6K:8", sequence_length=100)
        >>> schedule.sizes
        ((0, 4), (16, 8))
        >>> [schedule.batch_size(consumed) for consumed in (0, 12, 16)]
        [4, 4, 8]
        >>> schedule.position_of_step(5), schedule.step_of_position(31)
        (24, 5)
    """

    def __post_init__(self) -> None:
        sizes = _checked_pairs("sizes", self.sizes, first="consumed samples", second="batch size")
        object.__setattr__(self, "sizes", sizes)

    @classmethod
    def constant(cls, global_batch_size: int) -> BatchSizeSchedule:
        """Returns the schedule of a run with one global batch size."""
        return cls(sizes=((0, checked_integer("global_batch_size", global_batch_size, at_least=1)),))

    @classmethod
    def parse(cls, text: str, *, sequence_length: int | Iterable[tuple[int, int]] | None = None) -> BatchSizeSchedule:
        """Parses a schedule such as "0:768 250B:1536".

        Each item is a threshold, a colon, and the global batch size from that threshold on; blanks or commas separate
        items. Suffixes K, M, B (or G) and T are powers of 1000. If `sequence_length` is given, thresholds count tokens,
        rounded down to whole samples; otherwise they count samples and must not have a suffix.

        Args:
            text: the schedule.
            sequence_length: tokens per sample, or pairs (position, tokens per sample from this position on), ascending,
                the first pair at position 0; None if thresholds count samples.

        Raises:
            ConfigError: `text` is not a schedule; the message names the invalid item and its column.
        """
        lengths: Sequence[tuple[int, int]] | None = None
        if isinstance(sequence_length, Iterable):
            lengths = _checked_pairs("sequence_length", sequence_length, first="position", second="length")
        elif sequence_length is not None:
            lengths = [(0, checked_integer("sequence_length", sequence_length, at_least=1))]
        sizes: list[tuple[int, int]] = []
        for item in items_of(text, blanks_separate=True):
            where = f"{item.place} of the batch size schedule"
            threshold, size = _parse_item(item.text, where, is_in_tokens=lengths is not None)
            start = threshold if lengths is None else _position_of_tokens(threshold, lengths)
            if not sizes and threshold != 0:
                raise ConfigError(f"{where}: must start at 0, got {threshold}", hint="start with threshold 0: `0:768`")
            if sizes and start <= sizes[-1][0]:
                message = f"{where}: starts after {start} samples, but the previous item after {sizes[-1][0]}"
                raise ConfigError(message, hint="write thresholds in ascending order, at least one sample apart")
            sizes.append((start, size))
        return cls(sizes=tuple(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeRampup(BatchSizes):
    """A global batch size that grows in equal increments over the first samples; Megatron's `rampup_batch_size`.

    Example:
        >>> rampup = BatchSizeRampup(
        ...     start_global_batch_size=4, batch_size_increment=4, rampup_samples=24, global_batch_size=12
        ... )
        >>> [rampup.batch_size(consumed) for consumed in (0, 8, 12, 20, 28)]
        [4, 4, 8, 8, 12]

    Attributes:
        start_global_batch_size: global batch size of the first step.
        batch_size_increment: samples that each increment adds to the global batch size.
        rampup_samples: consumed samples at which the ramp ends; 0 disables the ramp.
        global_batch_size: global batch size after the ramp.
    """

    start_global_batch_size: int
    batch_size_increment: int
    rampup_samples: int
    global_batch_size: int
    sizes: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked_integer("start_global_batch_size", self.start_global_batch_size, at_least=1)
        checked_integer("batch_size_increment", self.batch_size_increment, at_least=1)
        checked_integer("rampup_samples", self.rampup_samples, at_least=0)
        checked_integer("global_batch_size", self.global_batch_size, at_least=self.start_global_batch_size)
        first, last = self.start_global_batch_size, self.global_batch_size
        if (last - first) % self.batch_size_increment:
            raise ConfigError(f"batch_size_increment {self.batch_size_increment}: must divide {last} - {first}")
        object.__setattr__(self, "sizes", tuple(self._sizes().items()))

    def _sizes(self) -> dict[int, int]:
        sizes = {0: self.start_global_batch_size if self.rampup_samples else self.global_batch_size}
        num_increments = (self.global_batch_size - self.start_global_batch_size) // self.batch_size_increment
        for number in range(1, num_increments + 1 if self.rampup_samples else 1):
            # Two roundings to double precision, as in Megatron. With exact integers, the size may grow a step early.
            samples_per_increment = self.rampup_samples / num_increments
            start = max(int(number * samples_per_increment) - 2, 0)
            while start <= self.rampup_samples and int(start / samples_per_increment) < number:
                start += 1
            sizes[start] = self.start_global_batch_size + number * self.batch_size_increment
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The mapping from the positions of a run to steps, micro-batches and ranks.

    In a step that starts at position s, micro-batch m of rank r has `micro_batch_size` consecutive positions, starting
    at `s + (m * data_parallel_size + r) * micro_batch_size`.

    Example:
        >>> from tokenloom.loading.batch_sizes import BatchSizeSchedule
        >>> sizes = BatchSizeSchedule.constant(8)
        >>> topology = Topology(batch_sizes=sizes, micro_batch_size=2, data_parallel_size=2)
        >>> topology.positions_of(1, rank=1).tolist()
        [10, 11, 14, 15]
        >>> topology.ranks(np.arange(8)).tolist()
        [0, 0, 1, 1, 0, 0, 1, 1]

    Attributes:
        batch_sizes: global batch size of each step.
        micro_batch_size: samples per micro-batch; None if unknown.
        data_parallel_size: number of data-parallel ranks; None if unknown.
    """

    batch_sizes: BatchSizes
    micro_batch_size: int | None = None
    data_parallel_size: int | None = None

    def __post_init__(self) -> None:
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            raise ConfigError("`micro_batch_size` and `data_parallel_size`: pass both or neither")
        for name in ("micro_batch_size", "data_parallel_size") if self.has_ranks else ():
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), at_least=1))

    @property
    def has_ranks(self) -> bool:
        """Whether `micro_batch_size` and `data_parallel_size` are known."""
        return self.micro_batch_size is not None

    def steps(self, positions: Int64s) -> Int64s:
        """Returns the step that reads each position, int64[num_positions]; steps count from 0."""
        steps, _, sizes, offsets = self._phases(positions)
        found: Int64s = steps + offsets // sizes
        return found

    def ranks(self, positions: Int64s) -> Int64s:
        """Returns the data-parallel rank that reads each position, int64[num_positions]."""
        return self._micro_batches_and_ranks(positions)[1]

    def micro_batches(self, positions: Int64s) -> Int64s:
        """Returns the micro-batch with each position, int64[num_positions]; micro-batches count from 0 in each step."""
        return self._micro_batches_and_ranks(positions)[0]

    def positions_of(self, step: int, *, rank: int | None = None, micro_batch: int | None = None) -> Int64s:
        """Returns the ascending positions, int64[num_positions], of a step, or of one rank or micro-batch in a step."""
        start = self.batch_sizes.position_of_step(step)
        positions = np.arange(start, start + self.batch_sizes.batch_size(start), dtype=np.int64)
        if rank is None and micro_batch is None:
            return positions
        micro_batch_size, num_ranks = self._required_sizes()
        num_micro_batches = count_chunks(len(positions), micro_batch_size * num_ranks, where=f" in step {step}")
        table = positions.reshape(num_micro_batches, num_ranks, micro_batch_size)
        limits = (("micro_batch", micro_batch, f"micro-batches in step {step}"), ("rank", rank, "data-parallel ranks"))
        for axis, (name, number, items) in enumerate(limits):
            if number is not None and checked_integer(name, number, at_least=0) >= table.shape[axis]:
                raise ConfigError(f"{name} {number} out of range: there are {table.shape[axis]} {items}")
        batches = slice(None) if micro_batch is None else micro_batch
        return table[batches, slice(None) if rank is None else rank].reshape(-1)

    def _micro_batches_and_ranks(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        micro_batch_size, num_ranks = self._required_sizes()
        _, starts, sizes, offsets = self._phases(positions)
        chunk = micro_batch_size * num_ranks
        for place in np.flatnonzero(sizes % chunk)[:1]:
            count_chunks(int(sizes[place]), chunk, where=f" after {starts[place]} samples")
        micro_batches, within = np.divmod(offsets % sizes, chunk)
        return micro_batches, within // micro_batch_size

    def _phases(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Returns first step, first position and batch size of each position's phase, and its offset in the phase."""
        positions = np.asarray(positions, dtype=np.int64)
        if (least := positions.min(initial=0)) < 0:
            raise ConfigError(f"positions must be 0 or more, got {least}")
        last = int(positions.max(initial=0))
        phases = [*takewhile(lambda phase: phase[1] <= last, self.batch_sizes.phases())]
        first_steps, starts, sizes = np.array(phases, dtype=np.int64).T
        found = np.searchsorted(starts, positions, side="right") - 1
        return first_steps[found], starts[found], sizes[found], positions - starts[found]

    def _required_sizes(self) -> tuple[int, int]:
        if self.micro_batch_size is None or self.data_parallel_size is None:
            raise ConfigError(
                "cannot compute ranks or micro-batches without `micro_batch_size` and `data_parallel_size`",
                hint="pass both to `Topology`",
            )
        return self.micro_batch_size, self.data_parallel_size


def _parse_item(text: str, where: str, *, is_in_tokens: bool) -> tuple[int, int]:
    found = _ITEM.fullmatch(text)
    if found is None:
        raise ConfigError(f"{where} is {'not `THRESHOLD:BATCH_SIZE`' if text else 'empty'}", hint=_EXAMPLE)
    if found["suffix"] and not is_in_tokens:
        message = f"{where}: a threshold with a suffix needs a sequence length"
        raise ConfigError(message, hint="pass `sequence_length`, or write the threshold as a number of samples")
    threshold, size = (Fraction(found[name]) for name in ("threshold", "size"))
    threshold *= _SUFFIXES[found["suffix"].upper()]
    size *= _SUFFIXES[found["size_suffix"].upper()]
    for name, number, least in (("threshold", threshold, 0), ("batch size", size, 1)):
        if number.denominator != 1 or not least <= number <= _LARGEST:
            raise ConfigError(f"{where}: the {name} must be an integer in [{least}, 2**63)")
    return int(threshold), int(size)


def _checked_pairs(name: str, pairs: Iterable[object], *, first: str, second: str) -> tuple[tuple[int, int], ...]:
    """Validates and returns pairs of integers: first members must ascend from 0, second members must be positive."""
    checked: list[tuple[int, int]] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(f"`{name}[{number}]`: must be ({first}, {second}), got {pair!r}")
        least, most = (checked[-1][0] + 1, None) if checked else (0, 1)
        start = checked_integer(f"the {first} of {name}[{number}]", pair[0], at_least=least, below=most)
        checked.append((start, checked_integer(f"the {second} of {name}[{number}]", pair[1], at_least=1)))
    if not checked:
        raise ConfigError(f"`{name}` is empty", hint=f"pass at least one ({first}, {second})")
    return tuple(checked)


def _position_of_tokens(num_tokens: int, lengths: Sequence[tuple[int, int]]) -> int:
    """Returns the number of whole samples in the first `num_tokens` tokens."""
    for (start, length), (stop, _) in pairwise(lengths):
        if num_tokens < (stop - start) * length:
            return start + num_tokens // length
        num_tokens -= (stop - start) * length
    start, length = lengths[-1]
    return start + num_tokens // length
