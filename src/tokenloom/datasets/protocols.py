"""What loading, blending, packing and inspecting may ask of a dataset, written down once.

A class of a user's own needs `__len__` and `__getitem__` (`Samples`). Whatever else of this it offers is used, by
`isinstance` with one of these and in no other way; whatever it does not offer is made of `dataset[k]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.outputs import MakeArray
from tokenloom.datasets.tensors import Sample
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.windows import SpanBatch, Spans

Positions = Sequence[int | None] | NDArray[np.integer[Any]]


@runtime_checkable
class Samples(Protocol):
    """A dataset: samples by number."""

    def __len__(self) -> int:
        """Returns the number of samples."""
        ...

    def __getitem__(self, idx: Any) -> Any:
        """Returns a sample: named tensors or arrays, a tuple or a named tuple. It alone says what samples are."""
        ...


@runtime_checkable
class ArraySamples(Protocol):
    """Gives a sample as NumPy arrays."""

    def sample(self, idx: int) -> Sample:
        """Returns a sample as NumPy arrays."""
        ...


@runtime_checkable
class Batches(Protocol):
    """Gives many samples as arrays with a leading batch axis."""

    def batch(self, positions: Positions) -> Sample:
        """Returns samples; None stands for one without loss."""
        ...


@runtime_checkable
class SometimesBatches(Protocol):
    """Says whether its `batch` gives samples at all: those of different lengths make no batch."""

    makes_batches: bool


@runtime_checkable
class FillsBatches(Protocol):
    """Fills given arrays with samples: `batch(positions, out=…)`."""

    @property
    def fills_batches(self) -> bool:
        """Whether it does, with these settings."""
        ...

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns arrays for a batch."""
        ...


@runtime_checkable
class FillsRows(FillsBatches, Protocol):
    """Fills some rows of given arrays; so a blend has each of its datasets fill its own rows."""

    def fill_rows(self, positions: Positions, out: Sample, rows: NDArray[np.int64] | None = None) -> None:
        """Fills rows of such arrays."""
        ...


@runtime_checkable
class HasItemHook(Protocol):
    """Names a function in its settings that only `dataset[k]` asks."""

    item_hook: str | None


@runtime_checkable
class Announces(Protocol):
    """Hears of samples that will be read, so that their bytes are fetched from afar."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""
        ...

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Announces samples, in the order in which they will be read."""
        ...


@runtime_checkable
class KnowsLengths(Protocol):
    """Tells how long samples are without reading them; what packing without communication needs."""

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns the tokens of samples: int64[num_positions]; of all of them for None."""
        ...

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns the same with padding."""
        ...


@runtime_checkable
class KnowsSpans(Protocol):
    """Tells which pieces of which documents a sample is made of."""

    def spans(self, idx: int) -> Spans:
        """Returns the spans of a sample."""
        ...

    def span_batch(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanBatch:
        """Returns the spans of many samples."""
        ...


@runtime_checkable
class Verifiable(Protocol):
    """Can work its order out again."""

    def verify_indices(self) -> list[str]:
        """Returns one sentence for each difference from the order in use."""
        ...


@runtime_checkable
class HearsOfEpochs(Protocol):
    """Is told the epoch by samplers that shuffle."""

    def set_epoch(self, epoch: int) -> None:
        """Takes the number of the epoch that begins."""
        ...


@runtime_checkable
class Composed(Protocol):
    """Consists of other datasets."""

    datasets: list[Any]


@runtime_checkable
class HasPair(Protocol):
    """A low-level dataset that holds a pair, with more beside it."""

    pair: IndexedDataset


def is_remote_dataset(dataset: Any) -> bool:
    """Whether a dataset reads from afar and wants to hear of later samples."""
    return isinstance(dataset, Announces) and bool(dataset.remote_paths)


def pair_of(low_level: Any) -> IndexedDataset | None:
    """Returns the pair behind a low-level dataset; None for made-up data."""
    if isinstance(low_level, IndexedDataset):  # first: asking a protocol takes as long as opening a pair
        return low_level
    return low_level.pair if isinstance(low_level, HasPair) and isinstance(low_level.pair, IndexedDataset) else None
