"""`megatron.core.datasets.retro.config`: containers of what preparing a project works with."""

from tokenloom_retro.megatron.config.bert_embedders import Embedder, RetroBertEmbedders
from tokenloom_retro.megatron.config.gpt_chunk_datasets import RetroGPTChunkDatasets
from tokenloom_retro.megatron.config.tokenizers import RetroTokenizers

__all__ = ["Embedder", "RetroBertEmbedders", "RetroGPTChunkDatasets", "RetroTokenizers"]
