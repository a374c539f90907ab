"""`megatron.core.datasets.megatron_dataset`: the base class of datasets, and orders over assigned index arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom._native import WindowReader
from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.datasets import base
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import NO_TOKEN as _PAD_TOKEN_ID  # noqa: F401
from tokenloom.forks import cached_property
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig  # noqa: F401
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.utils import Split  # noqa: F401
from tokenloom.order.array_store import ArrayStore, StoredOrder
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Documents
from tokenloom.order.policies import WindowOrder

LowLevelDataset = IndexedDataset | Iterable[Any]


class MegatronDataset(base.MegatronDataset, torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """`tokenloom.MegatronDataset` as a torch dataset with Megatron's hooks; same arguments and errors."""

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of elements to divide into splits; subclasses must override this method."""
        raise NotImplementedError

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens the low-level dataset at a path; subclasses must override this method."""
        raise NotImplementedError


class ListedSamples:
    """A mixin whose `__getitems__` returns a list, so that `collate_fn` may write to the samples."""

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns `[dataset[k] for k in positions]`, as one batch unless that skips an overridden method."""
        return list(super().__getitems__(positions))  # type: ignore[misc]  # of the next class in the MRO


def open_pair(path: str, config: Any, counts: Sequence[int] | None = None, dtype_code: int | None = None) -> Any:
    """Opens the pair at a path prefix with the settings of `config`; `counts` is passed as `sequences_per_dataset`."""
    files = {"mmap": config.mmap_bin_files, "fast_cache_load": config.fast_cache_load}
    return IndexedDataset(
        path, **files, sequences_per_dataset=counts, dtype_code=dtype_code, object_storage=config.storage_settings
    )


# --- orders -----------------------------------------------------------------------------------------------------------

NAMES = ("document_index", "sample_index", "shuffle_index")
"""The index arrays of a GPT dataset."""

_CHECKED_AT_ONCE = 1 << 16


def index_array(name: str) -> Any:
    """Returns a settable property for an index array; with `defer_npy_index_mmap`, None until a sample is read."""

    def get(dataset: Any) -> Any:
        order = dataset.order
        if dataset.config.defer_npy_index_mmap and isinstance(order, StoredOrder) and order.opened is None:
            return None  # until the first sample is read, as in Megatron
        return dataset._index(name)

    return property(get, lambda dataset, array: dataset._assign({name: array}))


def name_paths(dataset: Any, folder: Any, split: Any, *names: str) -> None:
    """Sets the attribute `path_to_NAME` of a dataset to Megatron's cache path, for each NAME in `names`."""
    for name in names:
        path = f"{folder}/{dataset.unique_description_hash}-{type(dataset).__name__}-{split.name}-{name}.npy"
        setattr(dataset, f"path_to_{name}", path)


def window_reader(arrays: Arrays, lengths: NDArray[np.int32], *, window_length: int, extra: int) -> WindowReader:
    """Returns a reader of windows over all tokens of the document index, including tokens past the planned epochs."""
    documents, rows, shuffle = (np.ascontiguousarray(arrays[name]) for name in NAMES)
    num_tokens = int(lengths[documents].sum(dtype=np.int64))
    return WindowReader(
        lengths, documents, rows, shuffle, window_length=window_length, extra=extra, num_tokens=num_tokens
    )


class _GivenArrays(StoredOrder):
    """A base class of orders over arrays in memory, without a cache."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], identity: str) -> None:
        self._given = arrays
        StoredOrder.__init__(self, ArrayStore(cache=None, description=identity, name=identity))

    def specs(self) -> dict[str, ArraySpec]:
        return {name: ArraySpec(array.dtype, array.shape) for name, array in self._given.items()}

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._given.items())

    def mismatch(self, arrays: Arrays) -> None:
        return None


class GivenBlendOrder(_GivenArrays, ArrayBlendOrder):
    """A `BlendOrder` over assigned arrays `dataset_index` and `dataset_sample_index`, integers[num_samples] each."""

    def __init__(self, dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], *, identity: str) -> None:
        arrays = {"dataset_index": dataset_index, "dataset_sample_index": dataset_sample_index}
        self.num_samples = len(dataset_index)
        super().__init__(arrays, identity)


class GivenOrder(_GivenArrays, WindowOrder):
    """A `SpanOrder` over an assigned document, sample and shuffle index; `arrays` maps names to arrays."""

    def __init__(
        self, arrays: Mapping[str, Any], documents: Documents, *, sequence_length: int, extra: int, identity: str
    ) -> None:
        self.num_samples = arrays["sample_index"].shape[0] - 1
        super().__init__(arrays, identity)
        self._documents = documents
        self._sequence_length = sequence_length
        self._extra = extra
        self._reader = None

    @cached_property
    def is_regular(self) -> bool:
        """Returns whether all samples are windows of the same length, which kernels require; reads all arrays once."""
        if len(self.arrays["shuffle_index"]) != self.num_samples:
            return False
        try:
            for start in range(0, self.num_samples, _CHECKED_AT_ONCE):
                stop = min(start + _CHECKED_AT_ONCE, self.num_samples)
                self.spans(np.arange(start, stop, dtype=np.int64), keep_empty=False)
        except (IndexError, TypeError, ValueError):
            return False
        return True

    def _read(self, arrays: Arrays) -> WindowReader:
        """Returns a reader of spans; reading raises `IndexError` if a sample is not a window of the common length."""
        lengths = self._documents.lengths
        return window_reader(arrays, lengths, window_length=self._sequence_length, extra=self._extra)

    def read(self, source: Any, idx: int) -> tuple[list[NDArray[Any]], list[int]]:
        """Returns tokens and sequence index of each document in sample `shuffle_index[idx]`, a sample of any length."""
        documents, rows, shuffle = (self.arrays[name] for name in NAMES)
        window = shuffle[idx]
        (first, start), (last, stop) = ([int(number) for number in rows[row]] for row in (window, window + 1))
        parts, found = [], []
        for place in range(first, last + 1):
            offset = start if place == first else 0
            length = stop + self._extra - offset if place == last else None
            found.append(int(documents[place]))
            parts.append(np.asarray(source.get(documents[place], offset=offset, length=length)))
        return parts, found
