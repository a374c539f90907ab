"""The protocols of orders, for datasets and blends: pure functions of positions, stored as arrays or computed."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SpanReader
from tokenloom.order.windows import SpanBatch


class Order(Protocol):
    """The base of all orders."""

    @property
    def num_samples(self) -> int:
        """The number of samples; positions are [0, num_samples). May open files."""
        ...

    @property
    def identity(self) -> str:
        """A text that is equal for equal orders over the same data, in every process."""
        ...

    @property
    def is_built(self) -> bool:
        """Whether reading a sample builds nothing."""
        ...

    def check(self) -> None:
        """Raises ChangedFileError if stored files changed; called after every read, so it must cost nothing."""
        ...

    def verify(self) -> list[str]:
        """Rebuilds the order, and returns a sentence for each difference."""
        ...


@runtime_checkable
class SpanOrder(Order, Protocol):
    """An order whose samples are spans of documents, for `GPTDataset`."""

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """Returns the spans of many samples.

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
            keep_empty: whether documents without tokens inside a sample have spans, too.

        Raises:
            IndexError: stored arrays do not fit the data.
        """
        ...

    def native_reader(self) -> SpanReader | None:
        """Returns a reader for kernels, which then fill samples by themselves; None for `spans` only."""
        ...


@runtime_checkable
class BlendOrder(Order, Protocol):
    """An order over the samples of several datasets, for `BlendedDataset`."""

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns dataset and sample of it at each position, integers[count] and int64[count].

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
        """
        ...

    def locate_one(self, position: int) -> tuple[int, int]:
        """Returns dataset and sample of it at one position."""
        ...
