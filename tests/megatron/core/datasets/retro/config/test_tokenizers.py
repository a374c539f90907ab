"""`tokenloom.megatron.core.datasets.retro.config.tokenizers`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets.retro.config import RetroTokenizers


def test_both_tokenizers_are_kept():
    assert RetroTokenizers(gpt="of the data", bert="of the embedder").bert == "of the embedder"
    assert RetroTokenizers().gpt is None
