"""`tokenloom.megatron.core.datasets.retro.config.gpt_chunk_datasets`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets.retro import RetroGPTChunkDatasets
from tokenloom.retro.gpt_chunks import build_gpt_chunk_datasets_from_gpt_datasets


def test_what_is_built_for_each_split_fits():
    built = build_gpt_chunk_datasets_from_gpt_datasets("p", {"train": None, "valid": None, "test": None}, 8, 4)
    assert RetroGPTChunkDatasets(**built) == RetroGPTChunkDatasets()
