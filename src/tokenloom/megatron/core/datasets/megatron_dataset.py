"""`megatron.core.datasets.megatron_dataset`: what every dataset of a builder is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tokenloom.datasets import base
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import NO_TOKEN as _PAD_TOKEN_ID
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.utils import Split

__all__ = [
    "_PAD_TOKEN_ID",
    "BlendedMegatronDatasetConfig",
    "IndexedDataset",
    "LowLevelDataset",
    "MegatronDataset",
    "Split",
]

if TYPE_CHECKING:
    from tokenloom.datasets.pair_samples import PairSamples

    _Base = PairSamples  # before which a dataset class has this
else:
    _Base = object

LowLevelDataset = IndexedDataset | Iterable[Any]


class MegatronDataset(base.MegatronDataset, torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types
    """`tokenloom.MegatronDataset` as a dataset of torch, in which every hook may be overridden.

    Args and errors are those of that class.
    """

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns how many elements of the low-level dataset the splits divide; for a class to define."""
        raise NotImplementedError

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Returns the low-level dataset of a path; for a class to define."""
        raise NotImplementedError


class ListedSamples(_Base):
    """What dataset classes here have before a class of ours: `collate_fn` gets a list, and may write into its dicts."""

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns many samples as `dataset[k]` gives them, made as one batch where they can be."""
        return list(super().__getitems__(positions))
