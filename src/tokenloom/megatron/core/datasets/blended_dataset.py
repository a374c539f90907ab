"""`megatron.core.datasets.blended_dataset`: several datasets as one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.blending import blended
from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.megatron_dataset import MegatronDataset
from tokenloom.megatron.core.datasets.utils import log_single_rank, normalize
from tokenloom.megatron.listed_samples import listed, numbers_of
from tokenloom.order.protocols import BlendOrder
from tokenloom.overrides import overrides

__all__ = [
    "BlendedDataset",
    "BlendedMegatronDatasetConfig",
    "MegatronDataset",
    "log_single_rank",
    "normalize",
]

logger: logging.Logger = logging.getLogger(__name__)

_VERBOSE = False


class GivenBlendOrder:
    """A `BlendOrder` over arrays that somebody gave: nothing is cached, and nothing can be built again.

    Args:
        dataset_index: integers[size], which dataset gives each sample.
        dataset_sample_index: integers[size], which of its samples that is.
        identity: what tells the order from others.
    """

    is_built = True

    def __init__(self, dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], *, identity: str) -> None:
        self.dataset_index = dataset_index
        self.dataset_sample_index = dataset_sample_index
        self.num_samples: int = dataset_index.shape[0]
        self.identity = identity

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns which dataset gives each sample, and which of its samples that is, see `BlendOrder`."""
        return self.dataset_index[positions], self.dataset_sample_index[positions]

    def locate_one(self, position: int) -> tuple[int, int]:
        """Returns the same for one position."""
        return int(self.dataset_index[position]), int(self.dataset_sample_index[position])

    def check(self) -> None:
        """Does nothing: there is no file to compare with."""

    def verify(self) -> list[str]:
        """Returns nothing: the order cannot be worked out again."""
        return []


def _index_array(name: str) -> Any:
    """Returns an attribute that is one of the two arrays of a blend, and that may be assigned."""
    return property(lambda dataset: dataset._index(name), lambda dataset, array: dataset._assign({name: array}))


class BlendedDataset(blended.BlendedDataset, torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types
    """`tokenloom.BlendedDataset` as a dataset of torch, whose arrays may be built by a class, or assigned.

    Args and errors are those of that class.
    """

    dataset_index = _index_array("dataset_index")
    dataset_sample_index = _index_array("dataset_sample_index")

    _given: dict[str, NDArray[Any]] | None = None

    def _array_order(self) -> BlendOrder:
        if self.config.defer_npy_index_mmap:
            base = f"{self.unique_description_hash}-{type(self).__name__}-{self.split.name}"
            for name in ("dataset_index", "dataset_sample_index"):
                setattr(self, f"path_to_{name}", f"{self.config.path_to_cache}/{base}-{name}.npy")
        if not overrides(self, "_build_indices"):
            return super()._array_order()
        index, sample_index = self._build_indices()
        if index is None:
            return super()._array_order()
        return self._take(index, sample_index)

    def _build_indices(self) -> tuple[Any, Any]:
        """Returns which dataset gives each sample, and which of its samples that is; None where that is deferred."""
        if self.config.defer_npy_index_mmap:
            return None, None
        order = super()._array_order()
        assert isinstance(order, ArrayBlendOrder)
        arrays = order.arrays
        return arrays["dataset_index"].copy(), arrays["dataset_sample_index"].copy()

    def _index(self, name: str) -> Any:
        order = self.order
        if self._given is not None:
            return self._given[name]
        if self.config.defer_npy_index_mmap and isinstance(order, ArrayBlendOrder) and order.opened is None:
            return None  # until the first sample, as in the reference
        index, sample_index = self._everything()
        return index if name == "dataset_index" else sample_index

    def _assign(self, arrays: dict[str, Any]) -> None:
        """Takes arrays that somebody made; the other one stays as it is."""
        index, sample_index = self._everything()
        self.order = self._take(**{"dataset_index": index, "dataset_sample_index": sample_index, **arrays})

    def _take(self, dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any]) -> GivenBlendOrder:
        self._given = {"dataset_index": dataset_index, "dataset_sample_index": dataset_sample_index}
        self._number_type, self._layout = dataset_index.dtype.type, None
        identity = f"{self.unique_description} with other arrays"
        return GivenBlendOrder(dataset_index, dataset_sample_index, identity=identity)

    def _everything(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if self._given is not None:
            return self._given["dataset_index"], self._given["dataset_sample_index"]
        return super()._everything()

    def __getitems__(self, positions: Sequence[int | None]) -> list[Any]:
        """Returns many samples as `dataset[k]` gives them, made as one batch where they can be."""
        samples = super().__getitems__(positions)
        numbers = numbers_of(samples, "dataset_id")
        samples = listed(samples)
        if numbers is not None:
            for sample, number in zip(samples, numbers, strict=True):
                sample["dataset_id"] = number
        return samples
