"""`megatron.core.datasets.masked_dataset`: what samples of BERT and T5 share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenloom.datasets import masked
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import ListedSamples, MegatronDataset
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank, logger  # noqa: F401


@dataclass
class MaskedWordPieceDatasetConfig(masked.MaskedWordPieceDatasetConfig, BlendedMegatronDatasetConfig):
    """The settings of masked datasets, those of all datasets checked as the reference checks them."""


class MaskedWordPieceDataset(ListedSamples, masked.MaskedWordPieceDataset, MegatronDataset):
    """The base of BERT and T5 datasets as datasets of torch; args and errors are those of the class of `tokenloom`.

    A class may override `__getitem__`; hooks of how sentences are chosen and masked are refused, as kernels do that.
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
            message = "expected data in `blend` or `blend_per_split`, found none"
            raise ConfigError(message, hint="only GPT samples can be made up")
        return IndexedDataset(
            dataset_path,
            mmap=config.mmap_bin_files,
            fast_cache_load=config.fast_cache_load,
            object_storage=config.storage_settings,
        )
