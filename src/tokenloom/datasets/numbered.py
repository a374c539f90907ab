"""Samples by number from cached index arrays: what the classes that read `.bin`/`.idx` pairs share."""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample, SampleBatch, to_tensors
from tokenloom.errors import ConfigError, IndexCacheError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.cache import IndexCache
from tokenloom.order.lazy import LazyIndices
from tokenloom.order.windows import SpanBatch, is_range


class NumberedSamples(LazyIndices, MegatronDataset):
    """A dataset that makes samples in batches; a subclass says how, in `_batch`.

    A position may count from the end. None gives a sample with an all-zero `loss_mask`, for filling up a batch.
    """

    def __init__(
        self,
        dataset: Any,
        dataset_path: str | None,
        indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: Any,
    ) -> None:
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)
        if isinstance(dataset, IndexedDataset) and dataset.dtype.kind not in "iu":
            message = f"{self._name()}: expected tokens of an integer dtype, found {dataset.dtype}"
            raise ConfigError(message)

    @abstractmethod
    def _batch(self, rows: NDArray[np.int64]) -> Sample:
        """Returns the samples at positions that are known to exist: int64[count]."""

    def __getitems__(self, positions: Sequence[int | None]) -> SampleBatch:
        """Returns many samples as torch tensors, made as one batch; torch's DataLoader calls this."""
        return SampleBatch(to_tensors(self.batch(positions)), len(positions))

    def sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays, see the class; None gives one with an all-zero loss mask."""
        if idx is None:
            batch = self.batch((None,))
        else:
            batch = self._batch(np.array([self._position(idx)], dtype=np.int64))
        return {name: array[0] for name, array in batch.items()}

    def batch(self, positions: Sequence[int | None] | NDArray[np.integer[Any]]) -> Sample:
        """Returns many samples as NumPy arrays with a leading batch axis, by one kernel call.

        Args:
            positions: of the samples, in any order, repeats allowed; None for a sample without loss.

        Raises:
            IndexError: there is no such sample.
        """
        rows, fillers = self._rows(positions)
        batch = self._batch(rows)
        if fillers:
            batch["loss_mask"][fillers] = 0
        return batch

    def _name(self) -> str:
        return f"`{self.dataset_path or type(self).__name__}` ({self.index_split.name})"

    def _damaged(self, error: IndexError) -> IndexCacheError:
        """Not an `IndexError`, which would end a loop over the dataset as if nothing had happened."""
        message = f"the indices of {self._name()} do not fit the data: {error}"
        return IndexCacheError(message, hint="remove them from the index cache, and they are built again")

    def _position(self, idx: int) -> int:
        """Returns the non-negative position for one that may count from the end."""
        num_samples = len(self)
        position = operator.index(idx)
        if not -num_samples <= position < num_samples:
            message = f"sample {position} of {self._name()} was asked for, but it has {num_samples}"
            raise IndexError(message)
        return position if position >= 0 else position + num_samples

    def _rows(self, positions: Sequence[int | None] | NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], list[int]]:
        """Returns non-negative positions, int64[count], and the rows that stand for None."""
        fillers: list[int] = []
        if not isinstance(positions, np.ndarray) and None in positions:
            fillers = [row for row, position in enumerate(positions) if position is None]
            positions = [0 if position is None else position for position in positions]
        given = np.asarray(positions)
        if given.dtype.kind not in "iu" and given.size:
            message = f"expected integers as positions of samples, found {given.dtype}"
            raise TypeError(message)
        rows = np.ascontiguousarray(given, dtype=np.int64)
        num_samples = len(self)
        if rows.size and not (rows.min() >= 0 and rows.max() < num_samples):
            rows = np.array([self._position(position) for position in rows.tolist()], dtype=np.int64)
        return rows, fillers

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if is_range(self.indices):  # 4 bytes per document otherwise
            first = int(self.indices[0])
            state["indices"] = range(first, first + len(self.indices)), self.indices.dtype
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["indices"], tuple):
            bounds, dtype = state["indices"]
            self.indices = np.arange(bounds.start, bounds.stop, dtype=dtype)


class PairSamples(NumberedSamples):
    """Samples that are spans of the sequences of one pair, which may lie in object storage."""

    @abstractmethod
    def span_batch(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanBatch:
        """Returns the spans of many samples."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""
        paths: list[str] = getattr(self.dataset, "remote_paths", [])
        return paths

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Announces samples that will be read, in this order, so that their bytes are fetched from object storage."""
        if self.remote_paths:
            rows, _ = self._rows(positions)
            spans = self.span_batch(rows)
            self.dataset.will_need(spans.documents, spans.starts, spans.lengths, block_bytes=self._block_bytes)

    @property
    def _block_bytes(self) -> int | None:
        """The size of the blocks that samples stay in for a while; None for an order that does not."""
        return None

    def _index_cache(self) -> IndexCache | None:
        """Returns where the indices are kept; None for made-up data without a folder."""
        if self.config.path_to_cache is None and self.config.mock:
            return None
        base = f"{self.unique_description_hash}-{type(self).__name__}-{self.index_split.name}"
        return IndexCache(self._index_folder(), base)

    def _index_folder(self) -> str:
        """Returns the folder of the index cache: the one that is named, else one beside the data."""
        if self.config.path_to_cache is not None:
            folder: str = self.config.path_to_cache
            return folder
        if self.remote_paths:
            message = f"expected `path_to_cache` with data in object storage, {self._name()}, found none"
            raise ConfigError(message, hint="name a local folder for the indices")
        return os.path.join(self.dataset.path_prefix, "cache", f"{type(self).__name__}_indices")
