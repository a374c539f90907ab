"""The seam of the order: what a dataset, and what a blend, asks of whatever decides which tokens are sample i.

An order is a pure function of positions. Ranks, workers, micro-batches and resuming never enter it. Today's orders are
arrays that are built once and cached (`order.arrays`); an order that is computed needs neither, and plugs in here.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SpanReader
from tokenloom.order.windows import SpanBatch


class Order(Protocol):
    """What any order can be asked."""

    @property
    def num_samples(self) -> int:
        """How many samples there are; positions are [0, num_samples). May open what is stored."""
        ...

    @property
    def identity(self) -> str:
        """What tells this order from others of the same data: equal for equal orders, in every process."""
        ...

    @property
    def is_built(self) -> bool:
        """Whether asking for a sample builds nothing."""
        ...

    def check(self) -> None:
        """Makes sure that what was read so far is what was stored; asked after every read, so it must cost nothing.

        Raises:
            ChangedFileError: it is not.
        """
        ...

    def verify(self) -> list[str]:
        """Works the order out again, and returns a sentence for each difference; as costly as building it."""
        ...


@runtime_checkable
class SpanOrder(Order, Protocol):
    """An order whose samples are spans of documents: what `GPTDataset` asks."""

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """Returns the spans of many samples.

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
            keep_empty: whether documents without tokens inside a sample have spans too.

        Raises:
            IndexError: what is stored does not fit the data.
        """
        ...

    def native_reader(self) -> SpanReader | None:
        """Returns the same for kernels, which then fill samples by themselves; None where only `spans` can tell."""
        ...


@runtime_checkable
class BlendOrder(Order, Protocol):
    """An order over the samples of several datasets: what `BlendedDataset` asks."""

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns which dataset gives each sample, and which of its samples that is: integers[count], int64[count].

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
        """
        ...

    def locate_one(self, position: int) -> tuple[int, int]:
        """Returns the same for one position; for loops that take samples one by one."""
        ...
