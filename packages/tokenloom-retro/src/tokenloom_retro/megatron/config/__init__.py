"""`megatron.core.datasets.retro.config` and its modules: dataclasses of a build, and the interface of embedders."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Embedder", "RetroBertEmbedders", "RetroGPTChunkDatasets", "RetroTokenizers"]


class Embedder(abc.ABC):
    """The interface of classes that embed texts, with Megatron's names."""

    @abc.abstractmethod
    def embed_text_dataset(self, text_dataset: Any) -> NDArray[np.float32]:
        """Returns the vectors, float32[num_texts, dimension], of a dataset whose samples have a `text`."""

    @abc.abstractmethod
    def embed_text(self, text: str) -> NDArray[np.float32]:
        """Returns the vector of a text: float32[dimension]."""


@dataclass
class RetroBertEmbedders:
    """Two embedders: one that caches vectors on disk, and one that does not."""

    disk: Embedder
    mem: Embedder


@dataclass
class RetroGPTChunkDatasets:
    """The result of `build_gpt_chunk_datasets_from_gpt_datasets` for each split; None for a split without samples."""

    train: dict[str, Any] | None = None
    valid: dict[str, Any] | None = None
    test: dict[str, Any] | None = None


@dataclass
class RetroTokenizers:
    """The tokenizer of the data and the tokenizer of the embedder."""

    gpt: Any = None
    bert: Any = None
