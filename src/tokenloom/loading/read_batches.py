"""What a loader has handed out, batch by batch, and over which positions: what ranks compare at checkpoints."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.protocols import order_of
from tokenloom.errors import ConfigError
from tokenloom.kernels import DigestSums
from tokenloom.loading.batch_digest import RangeDigest, ReadingDigest, digests_of_batch, name_of_run, total_of
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.loading.state import InOrder, in_order

Batch = Sequence[int | None]


@runtime_checkable
class HasReadBatches(Protocol):
    """A loader that keeps what it has handed out."""

    read: ReadBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Batches that a rank has handed out one after the other, and what it says they were.

    Attributes:
        sampler: whose batches they are.
        start: first position of all ranks.
        stop: position behind the last one of all ranks.
        sums: uint64[num_batches, 2], (lower half, upper half) of the digest of each batch.
    """

    sampler: Any
    start: int
    stop: int
    sums: NDArray[np.uint64]

    @property
    def num_batches(self) -> int:
        """Batches of this rank."""
        return len(self.sums)

    def batches(self, rank: int) -> Iterator[Batch]:
        """Yields the positions of these batches as a data-parallel rank is to read them."""
        sampler = copy.copy(self.sampler)
        sampler.data_parallel_rank = rank
        sampler.begin_at(self.start)
        return itertools.islice(iter(sampler), self.num_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rereading:
    """What is read again since the last check.

    Attributes:
        rank: the data-parallel rank whose batches this rank reads again; None if another rank does all.
        stretch: what this rank has read itself.
        sums: the digests that it finds, uint64[num_batches, 2].
    """

    rank: int | None
    stretch: Stretch
    sums: Future[NDArray[np.uint64]]


class ReadBatches:
    """The digest of every batch that a loader has handed out since the last check, and the sum since it began.

    16 bytes per batch since the last check.

    Args:
        dataset: what is read.
        sampler: yields the positions of the batches.
        keeps: whether the loader tells of its batches at all.
    """

    def __init__(self, dataset: Any, sampler: Any, *, keeps: bool = True) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.keeps = keeps
        self._loaded: RangeDigest | None = None
        self.rereading: Rereading | None = None
        """What is read again, where that was not compared yet."""
        self.begin(0)

    def go_on(self, read: RangeDigest | None) -> None:
        """Begins anew at a state, which says what all ranks had read; None if it does not."""
        self._loaded = read
        self.begin(0)

    def begin(self, num_batches: int) -> None:
        """Begins anew, after so many batches of the sampler that are skipped."""
        self._num_checked = num_batches
        self._has_tokens = True
        self._sums = DigestSums()
        self._checked = ReadingDigest()
        self._before = self._loaded

    def add(self, positions: Batch, digests: NDArray[np.uint64] | None) -> None:
        """Takes the next batch that was handed out.

        Args:
            positions: positions of its samples.
            digests: of the tokens of each, uint64[num_samples, 2]; None if they have no tokens.
        """
        if digests is None:
            self._has_tokens = False
            return
        try:
            self._sums.add(positions, digests)
        except (TypeError, OverflowError):  # what a dataset of a user's own is asked by
            self._has_tokens = False

    @property
    def total(self) -> ReadingDigest:
        """The sum over all batches since the loader began, or went on from a state.

        Raises:
            ConfigError: batches have no tokens.
        """
        if not self.keeps:
            message = "expected a loader that keeps a digest, found one made without"
            raise ConfigError(message, hint="make it with `digest=True`")
        if not self._has_tokens:
            message = (
                "expected batches with `tokens` [samples, tokens] at positions of 64 bits for a digest, found others "
            )
            message += f"in those of {type(self.dataset).__name__}"
            raise ConfigError(message, hint="add what you read to a `ReadingDigest` yourself")
        return self._checked + total_of(self._sums)

    @property
    def since_check(self) -> ReadingDigest:
        """The sum over the batches since the last check."""
        return total_of(self._sums)

    def stretch(self) -> Stretch:
        """Returns the batches since the last check.

        Raises:
            ConfigError: a position does not say what the sampler has yielded, or batches have no tokens.
        """
        _ = self.total
        sampler = in_order(self.sampler, self.dataset)
        if not isinstance(sampler, DataParallelSampler):
            message = f"expected a sampler that knows its data-parallel rank, found {type(sampler).__name__}"
            raise ConfigError(message, hint="derive it from one of this package, such as `MegatronPretrainingSampler`")
        number = self._num_checked + self._sums.num_batches
        return Stretch(
            sampler=self.sampler,
            start=sampler.position_after(self._num_checked),
            stop=sampler.position_after(number),
            sums=self._sums.sums().reshape(-1, 2),
        )

    @property
    def run(self) -> str:
        """What digests say of the run; `-` where the dataset is of none."""
        order = order_of(self.dataset)
        return "-" if order is None else name_of_run(order.order_state(0)["run"])

    @property
    def before(self) -> RangeDigest | None:
        """What all ranks together have read from the start of the run up to the last check; None for nothing."""
        return self._before

    def checked(self, found: RangeDigest) -> None:
        """Takes what all ranks together have read up to now; a check ends here."""
        self._before = found
        self._num_checked += self._sums.num_batches
        self._checked.take(total_of(self._sums))
        self._sums = DigestSums()

    def of_all_ranks(self) -> RangeDigest | None:
        """Returns what all ranks together have read since the start of the run; None where this rank cannot know.

        It knows at a check, and always where there is one data-parallel rank.
        """
        if not isinstance(self.sampler, DataParallelSampler) or not isinstance(self.sampler, InOrder):
            return None
        if not self._has_tokens:
            return None
        if not self._sums.num_batches:
            return self._before
        stretch = self.stretch()
        count = stretch.stop - stretch.start
        if self.sampler.data_parallel_size != 1 or self._sums.num_samples != count:
            return None
        found = RangeDigest(run=self.run, start=stretch.start, stop=stretch.stop, digest=total_of(self._sums))
        return behind(self._before, found)


def behind(before: RangeDigest | None, found: RangeDigest) -> RangeDigest:
    """Returns the digest of two ranges as one if they follow each other; else that of the second."""
    return found if before is None or before.stop != found.start else before + found


class DigestedBatches:
    """Keeps what any other loader hands out, such as torch's DataLoader, for `check_reading`.

    Args:
        batches: yields a batch for each list of positions of the sampler, in its order.
        dataset: what is read.
        sampler: yields the positions of one batch after the other; it is iterated beside the loader.
    """

    def __init__(self, batches: Iterable[Any], dataset: Any, sampler: Iterable[Batch]) -> None:
        self.batches = batches
        self.read: ReadBatches = ReadBatches(dataset, sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches."""
        self.read.begin(0)
        for positions, batch in zip(self.read.sampler, self.batches, strict=False):
            self.read.add(positions, digests_of_batch(batch, len(positions)))
            yield batch
