"""`megatron.core.datasets.t5_dataset`: T5 samples."""

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
    """Settings of T5 datasets, with Megatron's validation of the settings common to all datasets."""


class T5MaskedWordPieceDataset(masked.T5MaskedWordPieceDataset, MaskedWordPieceDataset):
    """A dataset of T5 samples, see `MaskedWordPieceDataset`."""
