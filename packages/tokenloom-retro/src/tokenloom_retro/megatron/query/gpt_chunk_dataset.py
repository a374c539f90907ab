"""`megatron.core.datasets.retro.query.gpt_chunk_dataset`: samples as chunks."""

from __future__ import annotations

from tokenloom_retro.gpt_chunks import (
    GPTChunkDataset,
    build_gpt_chunk_datasets_from_gpt_datasets,
    get_num_chunks_per_sample,
)

__all__ = ["GPTChunkDataset", "build_gpt_chunk_datasets_from_gpt_datasets", "get_num_chunks_per_sample"]
