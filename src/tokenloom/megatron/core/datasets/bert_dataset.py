"""`megatron.core.datasets.bert_dataset`: samples of BERT."""

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

_LOOK_UP_IN_ORDER = (0, 19)
"""Since this version random tokens do not depend on the order of the vocabulary; the change came after 0.16.1."""


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig, masked.BERTMaskedWordPieceDatasetConfig):
    """The settings of BERT datasets, those of all datasets checked as the reference checks them."""


class BERTMaskedWordPieceDataset(masked.BERTMaskedWordPieceDataset, MaskedWordPieceDataset):
    """BERT samples as the reference makes them, see `MaskedWordPieceDataset`.

    The padding mask goes by value: a random token that is the pad id counts as padding. Random tokens depend on the
    order of the vocabulary where the installed version of the reference has it so.
    """

    _masks_by_position = False

    @cached_property
    def token_lookup(self) -> list[int]:
        """The ids of random replacements."""
        ids = super().token_lookup
        return sorted(ids) if reference_version() >= _LOOK_UP_IN_ORDER else ids

    def _make_filler(self) -> BertFiller:
        return self._bert_filler(np.array(self.token_lookup, dtype=np.int64))
