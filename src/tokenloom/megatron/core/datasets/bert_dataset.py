"""`megatron.core.datasets.bert_dataset`: samples of BERT."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.datasets import bert
from tokenloom.datasets.tokenizer import required_token_id
from tokenloom.forks import cached_property
from tokenloom.kernels import BertFiller
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.masked_dataset import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig
from tokenloom.megatron.core.datasets.utils import Split
from tokenloom.megatron.versions import reference_version

__all__ = [
    "BERTMaskedWordPieceDataset",
    "BERTMaskedWordPieceDatasetConfig",
    "IndexedDataset",
    "MaskedWordPieceDataset",
    "MaskedWordPieceDatasetConfig",
    "Split",
]

_LOOK_UP_IN_ORDER = (0, 19)
"""Since this version random tokens do not depend on the order of the vocabulary; some version after 0.16.1."""

_MASK_PROBABILITY = 0.8
_KEEP_PROBABILITY = 0.5


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig, bert.BERTMaskedWordPieceDatasetConfig):
    """The settings of BERT datasets, those of all datasets checked as the reference checks them."""


class BERTMaskedWordPieceDataset(MaskedWordPieceDataset, bert.BERTMaskedWordPieceDataset):
    """BERT samples as the reference makes them, with its hooks, see `MaskedWordPieceDataset`.

    The mask of padding goes by value: a random token that is the pad id counts as padding. Where the version of the
    reference that is followed has it so, random tokens depend on the order of the vocabulary.
    """

    _special_tokens = bert.BERTMaskedWordPieceDataset._special_tokens
    _makes_samples = True
    _masks_by_position = False
    _empty = bert.BERTMaskedWordPieceDataset._empty

    @property
    def _min_sentences(self) -> int:
        return 2 if self.config.classification_head else 1

    @cached_property
    def token_lookup(self) -> list[int]:
        """The ids that a token may be replaced by at random."""
        tokenizer: Any = self.config.tokenizer
        ids: dict[int, str] = tokenizer.inv_vocab
        return sorted(ids) if reference_version() >= _LOOK_UP_IN_ORDER else list(ids)

    def _make_filler(self) -> BertFiller:
        return self._bert_filler(np.array(self.token_lookup, dtype=np.int64))

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> int | None:
        """Returns the mask token 8 times of 10, a random one once, and None once."""
        if numpy_random_state.random_sample() < _MASK_PROBABILITY:
            return required_token_id(self.config.tokenizer, "mask", "it stands in for masked tokens")
        if numpy_random_state.random_sample() < _KEEP_PROBABILITY:
            return None
        return self.token_lookup[numpy_random_state.randint(0, len(self.token_lookup))]

    def _sample_of(self, sentences: list[list[int]], target: int, random: np.random.RandomState) -> dict[str, Any]:
        first, second, is_random = self._segments(sentences, random)
        truncated = len(first) + len(second) > target
        while len(first) + len(second) > target:
            longer = first if len(first) > len(second) else second
            longer.pop(0 if random.random_sample() < 0.5 else -1)
        tokenizer: Any = self.config.tokenizer
        pad, length = self._pad_token_id, self.config.sequence_length
        tokens = [tokenizer.cls, *first, tokenizer.sep]
        types = np.full(length, pad, dtype=np.int64)
        types[: len(tokens)] = 0
        if second:
            types[len(tokens) : len(tokens) + len(second) + 1] = 1
            tokens += [*second, tokenizer.sep]
        tokens, positions, predicted, _, _ = self._create_masked_lm_predictions(tokens, target, random)
        text = np.full(length, pad, dtype=np.int64)
        text[: len(tokens)] = tokens
        labels = np.full(length, -1, dtype=np.int64)
        labels[positions] = predicted
        loss_mask = np.zeros(length, dtype=np.int64)
        loss_mask[positions] = 1
        return {
            "text": np.where(text == pad, 0, text),
            "types": types,
            "labels": np.where(labels == pad, 0, labels),
            "is_random": int(is_random),
            "padding_mask": np.where(text == pad, pad, 1),
            "loss_mask": loss_mask,
            "truncated": int(truncated),
        }

    def _segments(self, sentences: list[list[int]], random: np.random.RandomState) -> tuple[list[int], list[int], bool]:
        """Returns two segments of whole sentences, or all and none without a head, and whether they are swapped."""
        if not self.config.classification_head:
            return list(chain.from_iterable(sentences)), [], False
        pivot = random.randint(1, len(sentences)) if len(sentences) > 2 else 1
        first, second = (list(chain.from_iterable(part)) for part in (sentences[:pivot], sentences[pivot:]))
        is_random = bool(random.random_sample() < 0.5)
        return (second, first, True) if is_random else (first, second, False)
