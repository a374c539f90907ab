"""`megatron.core.datasets.t5_dataset`: samples of T5."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.datasets import masked
from tokenloom.megatron.core.datasets.masked_dataset import (  # noqa: F401
    IndexedDataset,
    MaskedWordPieceDataset,
    MaskedWordPieceDatasetConfig,
    Split,
)


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig, masked.T5MaskedWordPieceDatasetConfig):
    """The settings of T5 datasets, those of all datasets checked as the reference checks them."""


class T5MaskedWordPieceDataset(masked.T5MaskedWordPieceDataset, MaskedWordPieceDataset):
    """T5 samples as a dataset of torch, see `MaskedWordPieceDataset`."""
