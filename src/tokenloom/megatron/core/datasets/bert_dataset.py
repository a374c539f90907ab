"""`megatron.core.datasets.bert_dataset`: BERT samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom._native import BertFiller
from tokenloom.datasets import masked
from tokenloom.forks import cached_property
from tokenloom.megatron.core.datasets.masked_dataset import (  # noqa: F401
    IndexedDataset,
    MaskedWordPieceDataset,
    MaskedWordPieceDatasetConfig,
    Split,
)
from tokenloom.megatron.installation import reference_version

_SORTED_LOOKUP = (0, 19)
"""The first tested Megatron version in which random tokens do not depend on the order of the vocabulary."""


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig, masked.BERTMaskedWordPieceDatasetConfig):
    """Settings of BERT datasets, with Megatron's validation of the settings common to all datasets."""


class BERTMaskedWordPieceDataset(masked.BERTMaskedWordPieceDataset, MaskedWordPieceDataset):
    """A dataset of BERT samples, see `MaskedWordPieceDataset`.

    As in Megatron, a random replacement that equals the pad id is masked as padding. The random tokens are those of the
    installed Megatron version: before 0.19, the random tokens depend on the order of the vocabulary.
    """

    _masks_by_position = False

    @cached_property
    def token_lookup(self) -> list[int]:
        """The token ids that random replacements are drawn from."""
        ids = super().token_lookup
        return sorted(ids) if reference_version() >= _SORTED_LOOKUP else ids

    def _make_filler(self) -> BertFiller:
        return self._bert_filler(np.array(self.token_lookup, dtype=np.int64))
