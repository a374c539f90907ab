"""`megatron.core.datasets.retro.query` and its modules: samples, and the neighbors of their chunks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tokenloom.datasets.tensors import Sample
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import GivenOrder
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank
from tokenloom_retro import multi_split
from tokenloom_retro.assembled import get_retro_datasets
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.gpt_chunks import (
    GPTChunkDataset,
    build_gpt_chunk_datasets_from_gpt_datasets,
    get_num_chunks_per_sample,
)
from tokenloom_retro.project import RetroProject

__all__ = [
    "BlockPathMap",
    "DBDataset",
    "GPTChunkDataset",
    "GPTDataset",
    "GPTDatasetConfig",
    "IndexedDataset",
    "MultiSplitGPTDataset",
    "MultiSplitGPTDatasetConfig",
    "RetroDataset",
    "Split",
    "build_gpt_chunk_datasets_from_gpt_datasets",
    "convert_split_vector_to_split_matrix",
    "get_neighbor_dir",
    "get_num_chunks_per_sample",
    "get_query_dir",
    "get_retro_datasets",
    "log_single_rank",
    "parse_and_normalize_split",
]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass
class MultiSplitGPTDatasetConfig(multi_split.MultiSplitGPTDatasetConfig, GPTDatasetConfig):
    """`tokenloom_retro.MultiSplitGPTDatasetConfig` with Megatron's validation of GPT dataset settings."""


class MultiSplitGPTDataset(multi_split.MultiSplitGPTDataset, GPTDataset):
    """`tokenloom_retro.MultiSplitGPTDataset`, extended: calls methods of Megatron's class that the user overrides."""

    config: MultiSplitGPTDatasetConfig

    @property
    def item_hook(self) -> str | None:
        """Returns "sample_index" if arrays assigned by the user give samples of different lengths, else None."""
        order = self.__dict__.get("order")  # unset: the order is built by us
        return "sample_index" if type(order) is GivenOrder and not order.is_regular else None

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays."""
        if self.item_hook is None:
            return multi_split.MultiSplitGPTDataset.__getitem__(self, idx)
        found: tuple[Any, ...] = self._query_document_sample_shuffle_indices(self._position(self._not_none(idx)))
        names = ("text", "document_ids") if self.config.return_document_ids else ("text",)
        return dict(zip(names, found, strict=False))


def get_query_dir(project_dir: str) -> str:
    return RetroProject(project_dir).query_folder


def get_neighbor_dir(project_dir: str, key: str, dataset: Any) -> str:
    """Returns the folder with the neighbors of `dataset`, the samples of split `key`: "train", "valid" or "test"."""
    return RetroProject(project_dir).neighbor_folder(key, dataset)
