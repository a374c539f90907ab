"""`megatron.core.datasets.retro.query.retro_dataset`: samples with neighbors."""

from __future__ import annotations

from tokenloom_retro.assembled import get_retro_datasets
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.gpt_chunks import GPTChunkDataset, build_gpt_chunk_datasets_from_gpt_datasets

__all__ = [
    "BlockPathMap",
    "DBDataset",
    "GPTChunkDataset",
    "RetroDataset",
    "build_gpt_chunk_datasets_from_gpt_datasets",
    "get_retro_datasets",
]
