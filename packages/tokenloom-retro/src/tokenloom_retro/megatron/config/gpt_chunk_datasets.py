"""`megatron.core.datasets.retro.config.gpt_chunk_datasets`: the chunks of all splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["RetroGPTChunkDatasets"]


@dataclass
class RetroGPTChunkDatasets:
    """What `build_gpt_chunk_datasets_from_gpt_datasets` gives for each split; None for one without samples."""

    train: dict[str, Any] | None = None
    valid: dict[str, Any] | None = None
    test: dict[str, Any] | None = None
