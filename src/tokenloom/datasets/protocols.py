"""The interfaces of datasets for loading, blending, packing and inspecting.

A user's class needs `__len__`, and `__getitem__`, which defines the samples: named tensors or arrays, a tuple or a
named tuple. The rest is optional, and made of `dataset[k]` if missing.

- `batch(positions)` returns many samples as arrays with a leading batch axis; None stands for one without loss.
  `makes_batches = False`: it returns none, since samples differ in length.
- `item_hook` names a function in its settings that only `dataset[k]` calls.
- `slots_of(sequences)` returns the slots of sequences in a sample, padding included, int64[num_sequences]; a denied one
  has -1 - number.
- `epochs_of(positions)` returns the epoch of its data in which each sample begins, int64[num_positions] from 0; -1 if
  the order has none.
- `verify_indices()` builds its order again, and returns one sentence for each difference from the one in use.
- `set_epoch(epoch)` takes the number of the next epoch, from samplers that shuffle.
- `datasets` are its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.outputs import MakeArray
from tokenloom.datasets.tensors import Sample
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.windows import SpanBatch, Spans

Int64s = NDArray[np.int64]
Positions = Sequence[int | None] | NDArray[np.integer[Any]]


@runtime_checkable
class Samples(Protocol):
    """A dataset: samples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, idx: Any) -> Any: ...


@runtime_checkable
class FillsBatches(Protocol):
    """Fills given arrays with samples, `batch(positions, out=…)`, or some rows, `fill_rows(positions, out, rows)`.

    With `digests_tokens`, `batch(positions, digests=…)` also fills uint64[num_samples, 2] of zeros with the
    `kernels.digest_tokens` of all its tokens, or of none: zeros mean that the caller computes them.
    """

    @property
    def fills_batches(self) -> bool:
        """Whether it does so with these settings."""

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns arrays for a batch."""


@runtime_checkable
class Announces(Protocol):
    """Takes announcements of samples, to fetch their bytes from object storage."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Announces samples, in the order in which they will be read."""


@runtime_checkable
class KnowsLengths(Protocol):
    """Returns lengths of samples without reading them, for packing without communication."""

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the tokens of samples: int64[num_positions]; of all of them for None."""

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the same with padding."""


@runtime_checkable
class KnowsSpans(Protocol):
    """Returns the pieces of documents in samples."""

    def spans(self, idx: int) -> Spans:
        """Returns the spans of a sample."""

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""


@runtime_checkable
class KnowsOrder(Protocol):
    """Knows the identity of its order, for the state of loaders."""

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns the identity of a position: `run`, the run's id, `position`, and `digest`.

        The digest is the SHA-256, in hex, of all that determines the positions before it.
        """

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position of an earlier `order_state`.

        Raises:
            ConfigError: it is of another run, of another past, of data that were replaced since, or beyond the end.
        """


def order_of(dataset: Any) -> KnowsOrder | None:
    """Returns the `KnowsOrder` of a dataset: itself, or its `run_order`; None without one."""
    known: KnowsOrder | None = dataset if isinstance(dataset, KnowsOrder) else getattr(dataset, "run_order", None)
    return known


def is_remote_dataset(dataset: Any) -> bool:
    """Whether a dataset reads object storage and takes announcements."""
    return isinstance(dataset, Announces) and bool(dataset.remote_paths)


def pair_of(low_level: Any) -> IndexedDataset | None:
    """Returns the pair of a low-level dataset: itself, or its `pair`; None for mock data."""
    pair = low_level if isinstance(low_level, IndexedDataset) else getattr(low_level, "pair", None)
    return pair if isinstance(pair, IndexedDataset) else None
