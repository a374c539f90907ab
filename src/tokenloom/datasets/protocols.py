"""Protocols of datasets for loading, blending, packing and inspecting.

A user's class needs `__len__` and `__getitem__`. `__getitem__` defines the samples: tuples, named tuples, or dicts of
tensors or arrays. The following attributes are optional; tokenloom calls `dataset[k]` where they are missing:

- `batch(positions)` returns samples as arrays with a leading batch axis; a position None gives a sample without loss.
- `makes_batches = False` declares that `batch` is not supported, because samples differ in length.
- `item_hook` is the name of a function that changes samples and that only `dataset[k]` calls, not `batch`.
- `slots_of(sequences)` returns the number of slots per sequence, including padding: int64[num_sequences]. The index
  -1 - n stands for sequence n if a run denies sequence n, so that its tokens have no loss.
- `epochs_of(positions)` returns the epoch, from 0, in which each sample begins: int64[num_positions]; -1 if the order
  has no epochs.
- `verify_indices()` rebuilds the order and returns one sentence for each difference from the order in use.
- `set_epoch(epoch)` receives the number of the next epoch from samplers that shuffle.
- `datasets` lists the parts of a composite dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.sample_arrays import MakeArray
from tokenloom.datasets.tensors import Sample
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.windows import SpanBatch, Spans

Int64s = NDArray[np.int64]
Positions = Sequence[int | None] | NDArray[np.integer[Any]]


@runtime_checkable
class Samples(Protocol):
    """A dataset: `len(dataset)` samples, read by `dataset[k]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, idx: Any) -> Any: ...


@runtime_checkable
class FillsBatches(Protocol):
    """A dataset that fills given arrays: `batch(positions, out=…)` fills all rows, `fill_rows(…)` some rows.

    If `digests_tokens` is True, `batch(positions, digests=…)` also fills `digests`, uint64[num_samples, 2], with the
    result of `sample_digests.digest_tokens` for each sample. If `digests` stay zero, the caller computes the digests.
    """

    @property
    def fills_batches(self) -> bool:
        """Whether, with its current settings, the dataset can fill given arrays."""

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns uninitialised arrays for a batch of `count` samples."""


@runtime_checkable
class Announces(Protocol):
    """A dataset that prefetches samples from object storage."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that contain the tokens; empty for local data."""

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Starts to prefetch samples; `positions` are in the order in which the caller will read them."""


@runtime_checkable
class KnowsLengths(Protocol):
    """A dataset that knows all lengths without reading tokens, so that each rank can plan packs on its own."""

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the number of tokens of each sample (default: of all samples): int64[num_positions]."""

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the length of each sample (default: of all samples), including padding: int64[num_positions]."""


@runtime_checkable
class KnowsSpans(Protocol):
    """A dataset that returns the spans of its samples: the pieces of documents in each sample."""

    def spans(self, idx: int) -> Spans:
        """Returns the spans of a sample."""

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""


@runtime_checkable
class KnowsOrder(Protocol):
    """A dataset that describes a position of its order by a state, which loaders save to resume later."""

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns the state to save at a position: `run` (the id of the run), `position` and `digest`.

        `digest` is the SHA-256, in hex, of everything that determines the samples before the position.
        """

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position at which an `order_state` was saved.

        Raises:
            ConfigError: the run or its samples before the position have changed, the data were replaced, or the
                position is beyond the end.
        """


def order_of(dataset: Any) -> KnowsOrder | None:
    """Returns the `KnowsOrder` of a dataset: the dataset itself or its `run_order`; None if there is neither."""
    known: KnowsOrder | None = dataset if isinstance(dataset, KnowsOrder) else getattr(dataset, "run_order", None)
    return known


def is_remote_dataset(dataset: Any) -> bool:
    """Returns whether a dataset reads object storage and can prefetch."""
    return isinstance(dataset, Announces) and bool(dataset.remote_paths)


def pair_of(low_level: Any) -> IndexedDataset | None:
    """Returns the pair of a low-level dataset: the dataset itself or its `pair`; None if there is neither."""
    pair = low_level if isinstance(low_level, IndexedDataset) else getattr(low_level, "pair", None)
    return pair if isinstance(pair, IndexedDataset) else None
