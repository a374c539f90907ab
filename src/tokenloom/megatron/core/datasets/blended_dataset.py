"""`megatron.core.datasets.blended_dataset`: a weighted blend of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from tokenloom.blending import blended
from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.datasets.tensors import SampleBatch
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig  # noqa: F401
from tokenloom.megatron.core.datasets.megatron_dataset import GivenBlendOrder, MegatronDataset, index_array, name_paths  # noqa: F401
from tokenloom.megatron.core.datasets.utils import log_single_rank, logger, normalize  # noqa: F401
from tokenloom.order.protocols import BlendOrder
from tokenloom.overrides import overrides

_VERBOSE = False


class BlendedDataset(blended.BlendedDataset, torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """`tokenloom.BlendedDataset` as a torch dataset; programs may override `_build_indices` and assign index arrays."""

    dataset_index = index_array("dataset_index")
    dataset_sample_index = index_array("dataset_sample_index")

    def _array_order(self) -> BlendOrder:
        if self.config.defer_npy_index_mmap:
            name_paths(self, self.config.path_to_cache, self.split, "dataset_index", "dataset_sample_index")
        if overrides(self, "_build_indices"):
            index, sample_index = self._build_indices()
            if index is not None:  # None: loading is deferred
                return self._given_order(index, sample_index)
        return super()._array_order()

    def _build_indices(self) -> tuple[Any, Any]:
        """Returns dataset index and dataset sample index; both None with `defer_npy_index_mmap`. May be overridden."""
        if self.config.defer_npy_index_mmap:
            return None, None
        order = super()._array_order()
        assert isinstance(order, ArrayBlendOrder)
        arrays = order.arrays
        return arrays["dataset_index"].copy(), arrays["dataset_sample_index"].copy()

    def _index(self, name: str) -> Any:
        index, sample_index = self._all_located()
        return index if name == "dataset_index" else sample_index

    def _assign(self, arrays: dict[str, Any]) -> None:
        """Replaces the index arrays whose names are in `arrays`; other index arrays stay."""
        index, sample_index = self._all_located()
        self.order = self._given_order(**{"dataset_index": index, "dataset_sample_index": sample_index, **arrays})

    def _given_order(self, dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any]) -> GivenBlendOrder:
        self._number_type, self._layout = dataset_index.dtype.type, None
        identity = f"{self.unique_description} with other arrays"
        return GivenBlendOrder(dataset_index, dataset_sample_index, identity=identity)

    def __getitems__(self, positions: Sequence[int | None]) -> list[Any]:
        """Returns `[dataset[k] for k in positions]`, read as one batch unless a batch would skip an override."""
        samples = super().__getitems__(positions)
        listed = list(samples)
        if isinstance(samples, SampleBatch):
            for sample, number in zip(listed, samples.tensors["dataset_id"].numpy(), strict=True):
                sample["dataset_id"] = number
        return listed
