"""Protocols of orders. An order is a pure function from positions to samples, stored as arrays or computed."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SpanReader
from tokenloom.order.windows import SpanBatch


class Order(Protocol):
    """The attributes that all orders have."""

    @property
    def num_samples(self) -> int:
        """The number of samples; positions are in [0, num_samples). May open files."""

    @property
    def identity(self) -> str:
        """A text that is equal in every process for equal orders over the same data."""

    @property
    def is_built(self) -> bool:
        """Whether samples can be read without first building arrays."""

    def check(self) -> None:
        """Raises ChangedFileError if stored files changed. Must be cheap, as every read calls it."""

    def verify(self) -> list[str]:
        """Rebuilds the order and returns one sentence for each difference from the order in use."""


@runtime_checkable
class SpanOrder(Order, Protocol):
    """An order for `GPTDataset`: samples are spans of documents."""

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """Returns the document spans of many samples.

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
            keep_empty: include spans of length 0 for empty documents within a sample.

        Raises:
            IndexError: stored arrays do not match the data.
        """

    def native_reader(self) -> SpanReader | None:
        """Returns a native reader for kernels that fill samples without Python; None if `spans` is the only way."""


@runtime_checkable
class BlendOrder(Order, Protocol):
    """An order for `BlendedDataset`: each sample is a sample of one of several datasets."""

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns, per position, the index of a dataset, integers[count], and a sample number in it, int64[count].

        Args:
            positions: int64[count], each in [0, num_samples), in any order.
        """

    def locate_one(self, position: int) -> tuple[int, int]:
        """Returns, for one position, the index of a dataset and a sample number in this dataset."""
