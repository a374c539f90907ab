"""`megatron.core.datasets.t5_dataset`: samples of T5."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.datasets import t5
from tokenloom.datasets.t5_attention import dense_mask
from tokenloom.datasets.tokenizer import required_sentinels, required_token_id
from tokenloom.forks import cached_property
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.masked_dataset import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig
from tokenloom.megatron.core.datasets.utils import Split

__all__ = [
    "IndexedDataset",
    "MaskedWordPieceDataset",
    "MaskedWordPieceDatasetConfig",
    "Split",
    "T5MaskedWordPieceDataset",
    "T5MaskedWordPieceDatasetConfig",
]


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig, t5.T5MaskedWordPieceDatasetConfig):
    """The settings of T5 datasets, those of all datasets checked as the reference checks them."""


class T5MaskedWordPieceDataset(MaskedWordPieceDataset, t5.T5MaskedWordPieceDataset):
    """T5 samples with the hooks of the reference, see `MaskedWordPieceDataset`."""

    _special_tokens = t5.T5MaskedWordPieceDataset._special_tokens
    _makes_samples = True
    _empty = t5.T5MaskedWordPieceDataset._empty
    _make_filler = t5.T5MaskedWordPieceDataset._make_filler

    @cached_property
    def token_lookup(self) -> list[int]:
        """The ids of the vocabulary."""
        tokenizer: Any = self.config.tokenizer
        return list(tokenizer.inv_vocab)

    @staticmethod
    def _build_b1ss_attention_mask(
        source_block: Any,
        target_block: Any,
        make_history_mask: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
    ) -> Any:
        """Returns bool[batch, 1, sources, targets], True where nothing is attended to; token 0 counts as padding."""
        return dense_mask(source_block, target_block, causal=make_history_mask)

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> int | None:
        """Returns the mask token, whose place a sentinel takes."""
        return required_token_id(self.config.tokenizer, "mask", "it stands in for masked tokens")

    def _sample_of(self, sentences: list[list[int]], target: int, random: np.random.RandomState) -> dict[str, Any]:
        config, pad = self.config, self._pad_token_id
        tokenizer: Any = config.tokenizer
        text = list(chain.from_iterable(sentences))
        tokens, _, _, _, spans = self._create_masked_lm_predictions(text[:target], target, random)
        sentinels = required_sentinels(tokenizer)
        if len(spans) > len(sentinels):
            message = f"{len(spans)} runs of words are masked, but the tokenizer has {len(sentinels)} sentinel tokens"
            raise OverflowError(message)
        read: list[int] = []
        written: list[int] = []
        done = 0
        for sentinel, (positions, labels) in zip(sentinels, spans, strict=False):
            read += [*tokens[done : positions[0]], sentinel]
            written += [sentinel, *labels]
            done = positions[-1] + 1
        read += tokens[done:]
        room = config.sequence_length_decoder
        assert room is not None  # the config has checked it
        if len(written) >= room:
            message = f"the decoder needs {len(written) + 1} tokens, but sequence_length_decoder is {room}"
            raise OverflowError(message)
        encoder = np.full(config.sequence_length, pad, dtype=np.int64)
        encoder[: len(read)] = read
        decoder = np.full(room, pad, dtype=np.int64)
        decoder[: len(written) + 1] = [tokenizer.bos, *written]
        output = np.full(room, -1, dtype=np.int64)
        output[: len(written) + 1] = [*written, tokenizer.eos]
        return {
            "text_enc": np.where(encoder == pad, 0, encoder),
            "text_dec": np.where(decoder == pad, 0, decoder),
            "labels": np.where(output == pad, 0, output),
            "loss_mask": np.arange(room) <= len(written),
            "truncated": int(len(text) > target),
            "enc_mask": encoder != pad,
            "dec_mask": decoder != pad,
        }
