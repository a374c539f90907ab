"""`megatron.core.datasets.retro.config`: containers of what preparing a project works with."""

from tokenloom.megatron.core.datasets.retro.config.bert_embedders import Embedder, RetroBertEmbedders
from tokenloom.megatron.core.datasets.retro.config.gpt_chunk_datasets import RetroGPTChunkDatasets
from tokenloom.megatron.core.datasets.retro.config.tokenizers import RetroTokenizers

__all__ = ["Embedder", "RetroBertEmbedders", "RetroGPTChunkDatasets", "RetroTokenizers"]
