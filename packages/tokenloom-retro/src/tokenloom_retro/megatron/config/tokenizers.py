"""`megatron.core.datasets.retro.config.tokenizers`: the tokenizers of a preparation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["RetroTokenizers"]


@dataclass
class RetroTokenizers:
    """The tokenizer of the data, and that of the embedder."""

    gpt: Any = None
    bert: Any = None
