"""`megatron.core.datasets.retro`: samples with neighbors from a database of chunks."""

from tokenloom_retro.megatron.config.gpt_chunk_datasets import RetroGPTChunkDatasets
from tokenloom_retro.megatron.query.multi_split_gpt_dataset import (
    MultiSplitGPTDataset,
    MultiSplitGPTDatasetConfig,
)
from tokenloom_retro.megatron.query.retro_dataset import get_retro_datasets

__all__ = ["MultiSplitGPTDataset", "MultiSplitGPTDatasetConfig", "RetroGPTChunkDatasets", "get_retro_datasets"]
