"""`megatron.core.datasets.masked_dataset`: the base of BERT and T5 datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenloom.datasets import masked
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: F401
from tokenloom.megatron.core.datasets.megatron_dataset import ListedSamples, MegatronDataset, open_pair
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank, logger  # noqa: F401


@dataclass
class MaskedWordPieceDatasetConfig(masked.MaskedWordPieceDatasetConfig, BlendedMegatronDatasetConfig):
    """The settings of masked datasets, those of all datasets checked as the reference checks them."""


class MaskedWordPieceDataset(ListedSamples, masked.MaskedWordPieceDataset, MegatronDataset):
    """`tokenloom.MaskedWordPieceDataset` as a dataset of torch; same args and errors.

    A class may override `__getitem__`. Hooks that choose and mask sentences are errors, as kernels do that.
    """

    @cached_property
    def token_lookup(self) -> list[int]:
        """The ids of the vocabulary."""
        tokenizer: Any = self.config.tokenizer
        return list(tokenizer.inv_vocab)

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> Any:
        """Opens the pair at a path."""
        if dataset_path is None:
            raise ConfigError("no data given in `blend` or `blend_per_split`", hint="only GPT has mock data")
        return open_pair(dataset_path, config)
