"""Global batch sizes that change during a run: which size applies when, and which step reads which positions.

A size is a function of the consumed samples alone, so resuming needs nothing else. A step keeps the size that it began
with: where a change falls into a step, the next one is the first of the new size.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Protocol

from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import count_chunks
from tokenloom.numbers import checked_integer, items_of

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER, _SUFFIX = r"[0-9]{1,20}(?:\.[0-9]{1,20})?", "[KMBGTkmbgt]?"
_ITEM = re.compile(rf"(?P<threshold>{_NUMBER})(?P<suffix>{_SUFFIX}):(?P<size>{_NUMBER})(?P<size_suffix>{_SUFFIX})")
_LARGEST = 2**63 - 1
_EXAMPLE = "write it as `0:768 250B:1536`: a threshold, a colon, and the samples of each step from there on"


class BatchSizes(Protocol):
    """Says how large each global batch of a run is. A class of your own derives from it and defines two methods."""

    __slots__ = ()

    @abstractmethod
    def batch_size(self, consumed_samples: int) -> int:
        """Returns the samples of all ranks in the step that begins after so many consumed samples, at least 1."""
        ...

    @abstractmethod
    def next_change(self, consumed_samples: int) -> int | None:
        """Returns the samples, more than these, up to which `batch_size` stays as it is; None if it stays for ever."""
        ...

    def num_micro_batches(
        self,
        consumed_samples: int,
        *,
        micro_batch_size: int,
        data_parallel_size: int,
        decrease_batch_size_if_needed: bool = False,
    ) -> int:
        """Returns the micro-batches of each rank in the step that begins after so many consumed samples.

        Args:
            consumed_samples: samples that all ranks have consumed.
            micro_batch_size: samples per rank and micro-batch.
            data_parallel_size: ranks in all.
            decrease_batch_size_if_needed: use the next smaller size that micro-batches make up.

        Raises:
            ConfigError: a value is out of range, micro-batches do not make up the global batch, or it is smaller than
                one of each rank.
        """
        size = self.batch_size(consumed_samples)
        chunk = checked_integer("micro_batch_size", micro_batch_size, at_least=1)
        chunk *= checked_integer("data_parallel_size", data_parallel_size, at_least=1)
        if decrease_batch_size_if_needed and size >= chunk:
            return size // chunk
        return count_chunks(size, chunk, where=f" after {consumed_samples} samples")

    def position_of_step(self, step: int) -> int:
        """Returns the first position that a step reads, steps counted from 0: the samples consumed before it.

        This is about a run that has had these sizes from its first position on, none of them decreased. Costs as much
        as there are changes before the step.

        Raises:
            ConfigError: `step` is negative or no integer.
        """
        step = checked_integer("step", step, at_least=0)
        first_step, start, size = _last(takewhile(lambda stretch: stretch[0] <= step, self.stretches()))
        return start + (step - first_step) * size

    def step_of_position(self, position: int) -> int:
        """Returns the step that reads a position, steps counted from 0: how many steps were done before it is read.

        It is the inverse of `position_of_step`; where that gives less than `position` for it, the position is no first
        one of a step. Costs as much as there are changes before the position.

        Raises:
            ConfigError: `position` is negative or no integer.
        """
        position = checked_integer("position", position, at_least=0)
        first_step, start, size = _last(takewhile(lambda stretch: stretch[1] <= position, self.stretches()))
        return first_step + (position - start) // size

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yields (first step, its first position, samples per step) wherever the size may change."""
        step = start = 0
        while True:
            size = self.batch_size(start)
            yield step, start, size
            change = self.next_change(start)
            if change is None:
                return
            num_steps = -(-(change - start) // size)
            step += num_steps
            start += num_steps * size


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeSchedule(BatchSizes):
    """Which global batch size applies after how many consumed samples, as a list: it may rise and fall.

    The reference's `--step-batch-size-schedule`; `parse` reads its text.

    Example:
        >>> schedule = BatchSizeSchedule.parse("0:4 1.6K:8", sequence_length=100)
        >>> schedule.sizes
        ((0, 4), (16, 8))
        >>> [schedule.batch_size(consumed) for consumed in (0, 12, 16)]
        [4, 4, 8]
        >>> schedule.position_of_step(5), schedule.step_of_position(31)
        (24, 5)

    Attributes:
        sizes: (consumed samples, samples per step from then on), the first from 0 on, rising.

    Raises:
        ConfigError: a value is out of range, the first is not from 0 on, or they do not rise.
    """

    sizes: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Checks the sizes."""
        sizes = _checked_pairs(self.sizes, name="sizes", first="consumed samples", second="batch size")
        object.__setattr__(self, "sizes", tuple(sizes))

    @classmethod
    def constant(cls, global_batch_size: int) -> BatchSizeSchedule:
        """Returns the schedule of a run whose global batches are all of one size.

        Raises:
            ConfigError: it is no integer from 1 on.
        """
        return cls(sizes=((0, checked_integer("global_batch_size", global_batch_size, at_least=1)),))

    @classmethod
    def parse(cls, text: str, *, sequence_length: int | Iterable[tuple[int, int]] | None = None) -> BatchSizeSchedule:
        """Returns the schedule that a text such as "0:768 250B:1536" stands for.

        Each item is a threshold, a colon, and the samples per step from there on; blanks or commas stand between items.
        Numbers may have a suffix: K, M, B (or G) and T are powers of 1000. As in the reference, thresholds are tokens
        where a sequence length is given, and samples where none is; one in tokens applies as soon as less than a sample
        is missing.

        Args:
            text: the schedule.
            sequence_length: tokens per sample, or (position, tokens per sample from there on), the first from 0 on,
                rising, of a run whose samples change in length; None if thresholds are samples. They have no suffix
                then: who writes one means tokens.

        Raises:
            ConfigError: the text is no schedule, thresholds do not rise from 0, a batch size is 0, a threshold has a
                suffix and there is no sequence length; the message names the item and its column. Or the sequence
                lengths are none.
        """
        if not isinstance(text, str):
            message = f"expected a text as the schedule of batch sizes, found {text!r}"
            raise ConfigError(message, hint=_EXAMPLE)
        lengths = None if sequence_length is None else _checked_lengths(sequence_length)
        sizes: list[tuple[int, int]] = []
        for item in items_of(text, blanks_separate=True):
            where = f"{item.place} of the schedule of batch sizes"
            threshold, size = _parse_item(item.text, where, is_in_tokens=lengths is not None)
            start = threshold if lengths is None else _position_of_tokens(threshold, lengths)
            if not sizes and threshold != 0:
                message = f"{where} begins at {threshold}, not at 0"
                raise ConfigError(message, hint="say first what holds from the beginning on, as in `0:768`")
            if sizes and start <= sizes[-1][0]:
                message = f"{where} begins after {start} samples, and the item before it after {sizes[-1][0]}"
                raise ConfigError(message, hint="let thresholds rise, by a sample at least")
            sizes.append((start, size))
        return cls(sizes=tuple(sizes))

    def batch_size(self, consumed_samples: int) -> int:
        """Returns the samples of all ranks in the step that begins after so many consumed samples.

        Raises:
            ConfigError: `consumed_samples` is negative or no integer.
        """
        return self.sizes[self._count_begun(consumed_samples) - 1][1]

    def next_change(self, consumed_samples: int) -> int | None:
        """Returns the samples after which the next size applies; None if there is none.

        Raises:
            ConfigError: `consumed_samples` is negative or no integer.
        """
        num_begun = self._count_begun(consumed_samples)
        return self.sizes[num_begun][0] if num_begun < len(self.sizes) else None

    def _count_begun(self, consumed_samples: int) -> int:
        consumed_samples = checked_integer("consumed_samples", consumed_samples, at_least=0)
        return bisect_right(self.sizes, consumed_samples, key=itemgetter(0))


def _last(stretches: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    *_, last = stretches
    return last


def _parse_item(text: str, where: str, *, is_in_tokens: bool) -> tuple[int, int]:
    """Returns threshold and batch size of an item such as `250B:1536`."""
    found = _ITEM.fullmatch(text)
    if found is None:
        message = f"{where} is {'no threshold and batch size' if text else 'empty'}"
        raise ConfigError(message, hint=_EXAMPLE)
    if found["suffix"] and not is_in_tokens:
        message = f"{where} has a threshold in tokens, and it is not known how many a sample has"
        raise ConfigError(message, hint="give the sequence length, or write the samples in digits")
    threshold, size = (Fraction(found[name]) for name in ("threshold", "size"))
    threshold *= _SUFFIXES[found["suffix"].upper()]
    size *= _SUFFIXES[found["size_suffix"].upper()]
    for name, number, least in (("threshold", threshold, 0), ("batch size", size, 1)):
        if number.denominator != 1 or not least <= number <= _LARGEST:
            message = f"{where} has a {name} that is no whole number from {least} on, in 63 bits"
            raise ConfigError(message)
    return int(threshold), int(size)


def _checked_lengths(sequence_length: int | Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns (position, tokens per sample from there on), rising from position 0 on."""
    if not isinstance(sequence_length, Iterable):
        return [(0, checked_integer("sequence_length", sequence_length, at_least=1))]
    return _checked_pairs(sequence_length, name="sequence_length", first="position", second="length")


def _checked_pairs(pairs: Iterable[object], *, name: str, first: str, second: str) -> list[tuple[int, int]]:
    """Returns pairs of integers whose first numbers rise from 0 on, and whose second ones are positive."""
    checked: list[tuple[int, int]] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            message = f"expected ({first}, {second}) as {name}[{number}], found {pair!r}"
            raise ConfigError(message)
        start = checked_integer(f"the {first} of {name}[{number}]", pair[0], at_least=0)
        if start != 0 if not checked else start <= checked[-1][0]:
            expected = f"more than {checked[-1][0]}" if checked else "0"
            message = f"expected {expected} as the {first} of {name}[{number}], found {start}"
            raise ConfigError(message)
        checked.append((start, checked_integer(f"the {second} of {name}[{number}]", pair[1], at_least=1)))
    if not checked:
        message = f"expected at least one ({first}, {second}) in {name}, found none"
        raise ConfigError(message)
    return checked


def _position_of_tokens(num_tokens: int, lengths: Sequence[tuple[int, int]]) -> int:
    """Returns how many samples, from the first one on, have at most so many tokens in all."""
    for (start, length), (stop, _) in pairwise(lengths):
        if num_tokens < (stop - start) * length:
            return start + num_tokens // length
        num_tokens -= (stop - start) * length
    start, length = lengths[-1]
    return start + num_tokens // length
