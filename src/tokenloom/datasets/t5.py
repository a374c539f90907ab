"""T5 samples: a text in which runs of words are replaced by sentinels, and what stood there."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

from tokenloom._native import T5Filler
from tokenloom.datasets.masked import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig
from tokenloom.datasets.outputs import recycled_empty
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import required_sentinels, required_token_id
from tokenloom.errors import ConfigError

_SEPARATE_MASKS_FOR_ALL = (1, 10)
"""From this version on every kernel takes a padding mask per side; before, only flash and fused attention do."""

_SEPARATE_MASKS_AT_ALL = (1, 7)


def dense_mask(queries: Any, keys: Any, *, causal: bool = False) -> Any:
    """Returns bool[batch, 1, queries, keys], True where nothing is attended to; token 0 counts as padding."""
    seen = (queries >= 1).unsqueeze(2) & (keys >= 1).unsqueeze(1)
    return ~(seen.tril() if causal else seen).unsqueeze(1)


def _takes_separate_masks(te_version: str | None) -> bool:
    """Whether the kernels in use take one mask per side; without Transformer Engine, as its newest version."""
    try:
        te_version = te_version or metadata.version("transformer-engine")
    except metadata.PackageNotFoundError:
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


logger: logging.Logger = logging.getLogger(__name__)

_SPECIAL_TOKENS = 2  # the reference leaves room for one bos and one eos, though the encoder gets neither
_ROLES = {"bos": "it begins what the decoder reads", "eos": "it ends what the decoder writes"}


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """What T5 datasets need to know beyond the settings of masked ones.

    Attributes:
        sequence_length_encoder: tokens that the encoder reads: `sequence_length`; computed.
        sequence_length_decoder: tokens that the decoder reads. Required.
    """

    sequence_length_encoder: int | None = field(init=False, default=None)
    sequence_length_decoder: int | None = None

    def __post_init__(self) -> None:
        """Checks the settings and the tokenizer, and computes `sequence_length_encoder`."""
        super().__post_init__()
        self.sequence_length_encoder = self.sequence_length
        if self.sequence_length_decoder is None or self.sequence_length_decoder < 1:
            message = f"expected sequence_length_decoder of at least 1, found {self.sequence_length_decoder!r}"
            raise ConfigError(message)
        self._check_room(_SPECIAL_TOKENS)
        for role, reason in _ROLES.items():
            required_token_id(self.tokenizer, role, reason)
        sentinels = required_sentinels(self.tokenizer)
        longest = self.sequence_length - _SPECIAL_TOKENS
        most = int((self.masking_probability or 0.0) * longest)
        if len(sentinels) < most:
            logger.warning(
                "samples of %d tokens can have up to %d masked runs of words, but the tokenizer has %d sentinels: "
                "a sample with more runs than that is an error",
                longest,
                most,
                len(sentinels),
            )


class T5MaskedWordPieceDataset(MaskedWordPieceDataset):
    """T5 samples: the encoder reads a text with sentinels for masked runs, the decoder predicts what they stand for.

    The decoder reads bos, then each sentinel and its tokens, and writes the same followed by eos. A text longer than
    its target loses its end. A sample holds text_enc and enc_mask, int64[sequence_length_encoder]; text_dec, labels,
    loss_mask and dec_mask, int64[sequence_length_decoder]; and truncated.

    The pad id counts wherever it stands, in the text too: tokens and labels are 0 there, and the masks are 0. Labels
    are -1 after the end, or 0 for a tokenizer without a pad id.

    Args and errors are those of `MaskedWordPieceDataset`. A sample with more masked runs than the tokenizer has
    sentinels, or that does not fit the decoder, is a `ConfigError` that names it.
    """

    config: T5MaskedWordPieceDatasetConfig
    _special_tokens = _SPECIAL_TOKENS

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MaskedWordPieceDataset._key_config_attributes(), "sequence_length_decoder"]

    @staticmethod
    def config_attention_mask(
        encoder_tokens: Any,
        decoder_tokens: Any,
        encoder_mask: Any,
        decoder_mask: Any,
        use_local: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
        test_te_version: str | None = None,
    ) -> tuple[Any, Any, Any]:
        """Returns the attention masks of encoder, decoder and cross attention for a batch of tensors.

        With `use_local`, dense ones: bool[batch, 1, queries, keys], True where nothing is attended to; token 0 counts
        as padding. Else as Transformer Engine takes them, going by its version and by NVTE_FLASH_ATTN and
        NVTE_FUSED_ATTN: the encoder's mask as [batch, 1, 1, length], None for the decoder, which is causal, and a pair
        (decoder, encoder) across; dense ones for old versions whose unfused kernels need them. Where it is not
        installed, as its newest version.

        Args:
            encoder_tokens: `text_enc`, [batch, sequence_length_encoder].
            decoder_tokens: `text_dec`, [batch, sequence_length_decoder].
            encoder_mask: `enc_mask`.
            decoder_mask: `dec_mask`.
            use_local: the model does not use Transformer Engine.
            test_te_version: take this version for the installed one.

        Raises:
            ConfigError: the version is older than 1.7 and flash or fused attention is on.
        """
        if not use_local and _takes_separate_masks(test_te_version):
            encoder_mask, decoder_mask = (mask.unsqueeze(1).unsqueeze(1) for mask in (encoder_mask, decoder_mask))
            return encoder_mask, None, (decoder_mask, encoder_mask)
        decoder = dense_mask(decoder_tokens, decoder_tokens, causal=True) if use_local else None
        return dense_mask(encoder_tokens, encoder_tokens), decoder, dense_mask(decoder_tokens, encoder_tokens)

    @property
    def _min_sentences(self) -> int:
        return 1

    def _empty(self, count: int) -> Sample:
        encoder, decoder = self.config.sequence_length, self.config.sequence_length_decoder
        assert decoder is not None  # the config has checked it
        return {
            "text_enc": recycled_empty((count, encoder), np.int64),
            "text_dec": recycled_empty((count, decoder), np.int64),
            "labels": recycled_empty((count, decoder), np.int64),
            "loss_mask": recycled_empty((count, decoder), np.int64),
            "truncated": np.empty(count, dtype=np.int64),
            "enc_mask": recycled_empty((count, encoder), np.int64),
            "dec_mask": recycled_empty((count, decoder), np.int64),
        }

    def _make_filler(self) -> T5Filler:
        config = self.config
        assert config.sequence_length_decoder is not None  # the config has checked it
        return T5Filler(
            self._masker(),
            encoder_length=config.sequence_length,
            decoder_length=config.sequence_length_decoder,
            pad_id=self._pad_token_id,
            **{f"{role}_id": required_token_id(config.tokenizer, role, reason) for role, reason in _ROLES.items()},
            sentinels=required_sentinels(config.tokenizer),
        )
