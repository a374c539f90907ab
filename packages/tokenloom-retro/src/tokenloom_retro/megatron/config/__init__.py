"""`megatron.core.datasets.retro.config` and the modules in it: containers of what preparing a project works with."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Embedder", "RetroBertEmbedders", "RetroGPTChunkDatasets", "RetroTokenizers"]


class Embedder(abc.ABC):
    """What a class that embeds texts has, under the reference's names."""

    @abc.abstractmethod
    def embed_text_dataset(self, text_dataset: Any) -> NDArray[np.float32]:
        """Returns the embeddings of a dataset whose samples have a `text`: float32[num_texts, dimension]."""

    @abc.abstractmethod
    def embed_text(self, text: str) -> NDArray[np.float32]:
        """Returns the embedding of a text: float32[dimension]."""


@dataclass
class RetroBertEmbedders:
    """Two embedders: one that keeps what it made on disk, and one that does not."""

    disk: Embedder
    mem: Embedder


@dataclass
class RetroGPTChunkDatasets:
    """What `build_gpt_chunk_datasets_from_gpt_datasets` gives for each split; None for one without samples."""

    train: dict[str, Any] | None = None
    valid: dict[str, Any] | None = None
    test: dict[str, Any] | None = None


@dataclass
class RetroTokenizers:
    """The tokenizer of the data, and that of the embedder."""

    gpt: Any = None
    bert: Any = None
