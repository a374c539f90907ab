"""`tokenloom.megatron.core.datasets.retro.config.bert_embedders`."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.megatron.core.datasets.retro.config import Embedder, RetroBertEmbedders


class Lengths(Embedder):
    def embed_text_dataset(self, text_dataset):
        return np.stack([self.embed_text(sample["text"]) for sample in text_dataset])

    def embed_text(self, text):
        return np.array([len(text)], dtype=np.float32)


def test_an_embedder_is_derived_and_kept():
    embedders = RetroBertEmbedders(disk=Lengths(), mem=Lengths())
    assert embedders.mem.embed_text_dataset([{"text": "a"}, {"text": "bcd"}]).tolist() == [[1], [3]]


def test_an_embedder_must_embed():
    with pytest.raises(TypeError, match="abstract"):
        Embedder()
