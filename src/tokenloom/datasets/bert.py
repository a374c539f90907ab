"""BERT samples: one or two segments of text, in which masked words are to be predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import BertFiller
from tokenloom.datasets.masked import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig, SentenceText
from tokenloom.datasets.outputs import recycled_empty
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import NO_TOKEN, required_token_id
from tokenloom.errors import ConfigError

_SPECIAL_TOKENS = 3  # cls, and sep after each segment
_ROLES = {
    "cls": "it begins each sample",
    "sep": "it ends each segment",
    "mask": "it stands in for masked tokens",
}


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """What BERT datasets need to know beyond the settings of masked ones.

    Attributes:
        classification_head: whether samples have two segments, swapped half of the time, for next-sentence prediction.
            Required.
    """

    classification_head: bool | None = None

    def __post_init__(self) -> None:
        """Checks the settings and the tokenizer."""
        super().__post_init__()
        if self.classification_head is None:
            message = "expected `classification_head` to be True or False, found None"
            raise ConfigError(message)
        self._check_room(_SPECIAL_TOKENS)
        for role, reason in _ROLES.items():
            required_token_id(self.tokenizer, role, reason)


class BERTMaskedWordPieceDataset(MaskedWordPieceDataset):
    """BERT samples: cls, segment A, sep, and with a classification head segment B, sep.

    A text longer than its target is cut at either end of the longer segment. Of the masked tokens, 80 % become the mask
    token, 10 % a random one, 10 % stay. A sample holds text, types (1 in segment B), labels, padding_mask and
    loss_mask, int64[S] each, and is_random (whether A and B are swapped) and truncated.

    Labels are -1 where nothing is masked. Where the pad id stands in the text, text and labels are 0, as in the
    reference. After the text, types and padding_mask hold the pad id itself, as there: a tokenizer whose pad id is 0
    makes masks of zeros and ones, and one without a pad id gives -1 there. The mask goes by position: a random token
    that happens to be the pad id is seen. (In the reference it is not.)

    Args and errors are those of `MaskedWordPieceDataset`.
    """

    config: BERTMaskedWordPieceDatasetConfig
    _special_tokens = _SPECIAL_TOKENS
    _masks_by_position = True

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MaskedWordPieceDataset._key_config_attributes(), "classification_head"]

    @property
    def _min_sentences(self) -> int:
        return 2 if self.config.classification_head else 1

    def _empty(self, count: int) -> Sample:
        length = self.config.sequence_length
        names = ("text", "types", "labels", "is_random", "padding_mask", "loss_mask", "truncated")
        return {
            name: recycled_empty((count,) if name in ("is_random", "truncated") else (count, length), np.int64)
            for name in names
        }

    def _fill(self, text: SentenceText) -> Sample:
        sample = super()._fill(text)
        if self._masks_by_position and self._pad_token_id != NO_TOKEN:
            self._unmask_pads_in_text(text, sample)
        return sample

    def _unmask_pads_in_text(self, text: SentenceText, sample: Sample) -> None:
        """Has the mask of padding be 1 wherever text is: the kernel follows the reference, which goes by value."""
        sums = np.concatenate([[0], np.cumsum(text.sentence_lengths)])[text.row_offsets]
        lengths = np.minimum(np.diff(sums), text.targets) + 2  # cls, and sep
        places = np.minimum(lengths, self.config.sequence_length - 1)
        lengths += sample["types"][np.arange(len(places)), places] == 1  # sep of the second segment
        sample["padding_mask"][np.arange(self.config.sequence_length) < lengths[:, None]] = 1

    def _make_filler(self) -> BertFiller:
        assert self.config.word_pieces is not None  # the config has read it
        return self._bert_filler(self.config.word_pieces.ids)

    def _bert_filler(self, replacements: NDArray[np.int64]) -> BertFiller:
        config = self.config
        return BertFiller(
            self._masker(),
            sequence_length=config.sequence_length,
            pad_id=self._pad_token_id,
            **{f"{role}_id": required_token_id(config.tokenizer, role, reason) for role, reason in _ROLES.items()},
            classification_head=bool(config.classification_head),
            replacements=replacements,
        )
