"""`megatron.core.datasets.masked_dataset`: the base classes of BERT and T5 datasets."""

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
    """Settings of masked datasets, with Megatron's validation of the settings common to all datasets."""


class MaskedWordPieceDataset(ListedSamples, masked.MaskedWordPieceDataset, MegatronDataset):
    """`tokenloom.MaskedWordPieceDataset` as a torch dataset; same arguments and errors.

    A subclass may override `__getitem__`. Overriding a hook that chooses or masks sentences raises `ConfigError`,
    because native kernels choose and mask the sentences.
    """

    @cached_property
    def token_lookup(self) -> list[int]:
        """All token ids, in the order of the vocabulary."""
        tokenizer: Any = self.config.tokenizer
        return list(tokenizer.inv_vocab)

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> Any:
        if dataset_path is None:
            raise ConfigError("no data given", hint="set `blend` or `blend_per_split`; only GPT has mock data")
        return open_pair(dataset_path, config)
