"""`megatron.core.datasets.retro`: samples with neighbors from a database of chunks."""

from tokenloom.megatron.core.datasets.retro.config.gpt_chunk_datasets import RetroGPTChunkDatasets
from tokenloom.megatron.core.datasets.retro.query.multi_split_gpt_dataset import (
    MultiSplitGPTDataset,
    MultiSplitGPTDatasetConfig,
)
from tokenloom.megatron.core.datasets.retro.query.retro_dataset import get_retro_datasets

__all__ = ["MultiSplitGPTDataset", "MultiSplitGPTDatasetConfig", "RetroGPTChunkDatasets", "get_retro_datasets"]
