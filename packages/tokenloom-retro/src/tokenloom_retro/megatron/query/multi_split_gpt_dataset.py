"""`megatron.core.datasets.retro.query.multi_split_gpt_dataset`: samples as texts, of splits that meet others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tokenloom.datasets import multi_split
from tokenloom.datasets.tensors import Sample
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank
from tokenloom.megatron.given_order import GivenOrder

__all__ = [
    "GPTDataset",
    "GPTDatasetConfig",
    "IndexedDataset",
    "MultiSplitGPTDataset",
    "MultiSplitGPTDatasetConfig",
    "Split",
    "convert_split_vector_to_split_matrix",
    "log_single_rank",
    "parse_and_normalize_split",
]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass
class MultiSplitGPTDatasetConfig(multi_split.MultiSplitGPTDatasetConfig, GPTDatasetConfig):
    """`tokenloom.datasets.MultiSplitGPTDatasetConfig`, those of GPT datasets checked as the reference checks them."""


class MultiSplitGPTDataset(multi_split.MultiSplitGPTDataset, GPTDataset):
    """`tokenloom.datasets.MultiSplitGPTDataset` in which every hook of the reference is called.

    Args and errors are those of that class.
    """

    config: MultiSplitGPTDatasetConfig

    @property
    def item_hook(self) -> str | None:
        """What kernels would pass by: index arrays that nobody could have built; None if there are none."""
        order = self.__dict__.get("order")  # one that is not there yet is ours
        return "sample_index" if type(order) is GivenOrder and not order.is_regular else None

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays."""
        if self.item_hook is None:
            return multi_split.MultiSplitGPTDataset.__getitem__(self, idx)
        found: tuple[Any, ...] = self._query_document_sample_shuffle_indices(self._position(self._not_none(idx)))
        names = ("text", "document_ids") if self.config.return_document_ids else ("text",)
        return dict(zip(names, found, strict=False))
