"""`megatron.core.datasets.retro`: samples with neighbors from a database of chunks."""

from tokenloom_retro.megatron.config import RetroGPTChunkDatasets
from tokenloom_retro.megatron.query import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig, get_retro_datasets

__all__ = ["MultiSplitGPTDataset", "MultiSplitGPTDatasetConfig", "RetroGPTChunkDatasets", "get_retro_datasets"]
