"""What loading, blending, packing and inspecting may ask of a dataset, written down once.

A class of a user's own needs `__len__`, and `__getitem__`, which alone says what samples are: named tensors or arrays,
a tuple or a named tuple. Whatever else of this it offers is used; whatever it does not offer is made of `dataset[k]`.

- `batch(positions)` gives many samples as arrays with a leading batch axis; None stands for one without loss.
  `makes_batches = False` says that it gives none, as samples of different lengths make no batch.
- `item_hook` names a function in its settings that only `dataset[k]` asks.
- `slots_of(sequences)` gives spans more room in a sample than they have tokens, int64[num_sequences]: it is filled up
  with padding; -1 - number of one that is denied.
- `epochs_of(positions)` tells from a stored order in which epoch of its data each sample begins, int64[num_positions]
  from 0; -1 where the order tells none.
- `verify_indices()` works its order out again, and returns one sentence for each difference from the one in use.
- `set_epoch(epoch)` takes the number of the epoch that begins, from samplers that shuffle.
- `datasets` are those that it consists of.
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

    One with `digests_tokens` also puts digests of the tokens that it hands out, those of `kernels.digest_tokens`, into
    uint64[num_samples, 2] of zeros, `batch(positions, digests=…)`; all of them or none: where it leaves zeros, they are
    made of the samples.
    """

    @property
    def fills_batches(self) -> bool:
        """Whether it does, with these settings."""

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns arrays for a batch."""


@runtime_checkable
class Announces(Protocol):
    """Hears of samples that will be read, so that their bytes are fetched from afar."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Announces samples, in the order in which they will be read."""


@runtime_checkable
class KnowsLengths(Protocol):
    """Tells how long samples are without reading them; what packing without communication needs."""

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the tokens of samples: int64[num_positions]; of all of them for None."""

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> Int64s:
        """Returns the same with padding."""


@runtime_checkable
class KnowsSpans(Protocol):
    """Tells which pieces of which documents a sample is made of."""

    def spans(self, idx: int) -> Spans:
        """Returns the spans of a sample."""

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""


@runtime_checkable
class KnowsOrder(Protocol):
    """Knows the identity of its order, so that a state says which order it is a position of."""

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns what identifies a position: `run`, the run's id, `position`, and `digest`.

        The digest is the SHA-256, in hex, of everything that decides the positions before it, and of nothing else.
        """

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position of what `order_state` returned, whenever that was.

        Raises:
            ConfigError: it is of another run, of another past, of data that were replaced since, or beyond the end.
        """


def order_of(dataset: Any) -> KnowsOrder | None:
    """Returns what knows the order of a dataset: itself, or its `run_order`, if it has one; None if nothing does."""
    known: KnowsOrder | None = dataset if isinstance(dataset, KnowsOrder) else getattr(dataset, "run_order", None)
    return known


def is_remote_dataset(dataset: Any) -> bool:
    """Whether a dataset reads from afar and wants to hear of later samples."""
    return isinstance(dataset, Announces) and bool(dataset.remote_paths)


def pair_of(low_level: Any) -> IndexedDataset | None:
    """Returns the pair behind a low-level dataset: itself, or its `pair`; None for made-up data."""
    pair = low_level if isinstance(low_level, IndexedDataset) else getattr(low_level, "pair", None)
    return pair if isinstance(pair, IndexedDataset) else None
