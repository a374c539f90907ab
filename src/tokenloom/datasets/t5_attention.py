"""The attention masks that a T5 model takes, by the version of Transformer Engine that runs it."""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import Any

from tokenloom.errors import ConfigError

_SEPARATE_MASKS_FOR_ALL = (1, 10)
"""From this version on every kernel takes a padding mask per side; before, only flash and fused attention do."""

_SEPARATE_MASKS_AT_ALL = (1, 7)


def attention_masks(
    encoder_tokens: Any,
    decoder_tokens: Any,
    encoder_mask: Any,
    decoder_mask: Any,
    *,
    use_local: bool,
    te_version: str | None,
) -> tuple[Any, Any, Any]:
    """Returns the masks of encoder, decoder and cross attention; `config_attention_mask` of T5 datasets says more."""
    if use_local:
        return (
            dense_mask(encoder_tokens, encoder_tokens),
            dense_mask(decoder_tokens, decoder_tokens, causal=True),
            dense_mask(decoder_tokens, encoder_tokens),
        )
    if _takes_separate_masks(te_version or _installed_version()):
        encoder_mask, decoder_mask = (mask.unsqueeze(1).unsqueeze(1) for mask in (encoder_mask, decoder_mask))
        return encoder_mask, None, (decoder_mask, encoder_mask)
    return dense_mask(encoder_tokens, encoder_tokens), None, dense_mask(decoder_tokens, encoder_tokens)


def dense_mask(queries: Any, keys: Any, *, causal: bool = False) -> Any:
    """Returns bool[batch, 1, queries, keys], True where nothing is attended to; token 0 counts as padding."""
    seen = (queries >= 1).unsqueeze(2) & (keys >= 1).unsqueeze(1)
    return ~(seen.tril() if causal else seen).unsqueeze(1)


def _takes_separate_masks(te_version: str | None) -> bool:
    """Whether the kernels in use take one mask per side; without Transformer Engine, as its newest version."""
    if te_version is None:
        return True
    numbers = re.findall(r"\d+", te_version)
    version = (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0)
    enabled = [name for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN") if os.environ.get(name) == "1"]
    if version >= _SEPARATE_MASKS_FOR_ALL:
        return True
    if version < _SEPARATE_MASKS_AT_ALL and enabled:
        message = f"Transformer Engine {te_version} runs T5 without flash and fused attention, found {enabled[0]}=1"
        raise ConfigError(message, hint="set NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0, or upgrade to 1.7 or newer")
    return bool(enabled)


def _installed_version() -> str | None:
    try:
        return metadata.version("transformer-engine")
    except metadata.PackageNotFoundError:
        return None
