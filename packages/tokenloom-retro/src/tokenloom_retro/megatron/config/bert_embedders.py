"""`megatron.core.datasets.retro.config.bert_embedders`: what embeds texts."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Embedder", "RetroBertEmbedders"]


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
