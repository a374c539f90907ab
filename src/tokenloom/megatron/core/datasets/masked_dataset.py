"""`megatron.core.datasets.masked_dataset`: what samples of BERT and T5 share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets import masked
from tokenloom.datasets.masked import SentenceText
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import MegatronDataset
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank
from tokenloom.megatron.core.datasets.word_masking import MaskedText, mask_words
from tokenloom.megatron.listed_samples import ListedSamples
from tokenloom.order.sentences import SentenceOrder, SentenceSource
from tokenloom.overrides import Uncalled, overrides

__all__ = [
    "BlendedMegatronDatasetConfig",
    "IndexedDataset",
    "MaskedWordPieceDataset",
    "MaskedWordPieceDatasetConfig",
    "MegatronDataset",
    "Split",
    "log_single_rank",
]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass
class MaskedWordPieceDatasetConfig(masked.MaskedWordPieceDatasetConfig, BlendedMegatronDatasetConfig):
    """The settings of masked datasets, those of all datasets checked as the reference checks them."""


class MaskedWordPieceDataset(ListedSamples, masked.MaskedWordPieceDataset, MegatronDataset):
    """The base of BERT and T5 datasets, with the hooks of the reference.

    A class may override `_build_sample_index`, `_create_masked_lm_predictions` and `_get_token_mask`, and assign
    `sample_index`. One that masks in Python makes samples one by one.

    A class of a user's own that is neither BERT nor T5 has a `__getitem__` over `sample_index` and `dataset`, and
    assigns what `_build_sample_index(sequence_length, min_sentences_per_sample)` returns in its `__init__`.

    Args and errors are those of the class of `tokenloom`.
    """

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}

    _special_tokens = 0
    _makes_samples: ClassVar[bool] = False
    """Whether the class says which sentences its samples take, and makes samples of them."""

    def __init__(
        self,
        indexed_dataset: IndexedDataset,
        dataset_path: str | None,
        indexed_indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: MaskedWordPieceDatasetConfig,
    ) -> None:
        self._masks_in_python = overrides(self, "_create_masked_lm_predictions", "_get_token_mask")
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        if self._makes_samples and overrides(self, "_build_sample_index"):
            longest = config.sequence_length - self._special_tokens
            self.sample_index = self._build_sample_index(longest, self._min_sentences)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of documents: a document's sentences stay in one split."""
        return len(low_level_dataset.document_indices) - 1

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

    # --- which sentences --------------------------------------------------------------------------------------

    def _make_order(self, longest_text: int, min_sentences: int) -> SentenceOrder:
        if self._makes_samples and not overrides(self, "_build_sample_index"):
            return super()._make_order(longest_text, min_sentences)
        return _GivenSentences(self.dataset, np.empty((0, 3), dtype=np.uint32), name=self._name())

    def _build_sample_index(self, sequence_length: int, min_sentences_per_sample: int) -> NDArray[Any]:
        """Builds which sentences each sample takes, or reads it from the cache.

        Args:
            sequence_length: tokens of text in a sample, at most.
            min_sentences_per_sample: sentences in it, at least.

        Returns:
            uint32[num_samples, 3], of each sample: first sentence, one past the last, target length in tokens.
        """
        self.order = super()._make_order(sequence_length, min_sentences_per_sample)
        return self.order.mapping()

    @property
    def sample_index(self) -> NDArray[Any]:
        """uint32[num_samples, 3], of each sample: first sentence, one past the last, target length in tokens."""
        return self.order.mapping()

    @sample_index.setter
    def sample_index(self, rows: NDArray[Any]) -> None:
        if rows is not self.order.mapping():
            self.order = _GivenSentences(self.dataset, rows, name=self._name())

    @property
    def _min_sentences(self) -> int:
        return 1

    # --- samples ----------------------------------------------------------------------------------------------

    def _create_masked_lm_predictions(
        self, token_ids: list[int], target_sequence_length: int, numpy_random_state: np.random.RandomState
    ) -> MaskedText:
        """Masks a text.

        Args:
            token_ids: the text, with its special tokens.
            target_sequence_length: tokens of which a share is masked, at most.
            numpy_random_state: the generator of the sample.

        Returns:
            The masked tokens; the positions that are predicted, rising; what stood there; 1 for each token that begins
            a word or is special, else 0; and each masked n-gram as its positions and what stood there.
        """
        return mask_words(
            token_ids,
            target_sequence_length,
            numpy_random_state,
            config=self.config,
            replacement=self._get_token_mask,
        )

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> int | None:
        """Returns what a masked token becomes; None to keep it. A class of your own says."""
        raise NotImplementedError

    def _fill(self, text: SentenceText) -> Sample:
        if not self._masks_in_python:
            return super()._fill(text)
        sample = self._empty(len(text.targets))
        ends = np.cumsum(text.sentence_lengths)[:-1]
        sentences = [part.tolist() for part in np.split(text.tokens, ends)] if len(text.sentence_lengths) else []
        for row, (seed, target) in enumerate(zip(text.seeds.tolist(), text.targets.tolist(), strict=True)):
            own = sentences[int(text.row_offsets[row]) : int(text.row_offsets[row + 1])]
            made = self._sample_of(own, target, np.random.RandomState(seed))
            for name, value in made.items():
                sample[name][row] = value
        return sample

    def _sample_of(self, sentences: list[list[int]], target: int, random: np.random.RandomState) -> dict[str, Any]:
        """Returns a sample of these sentences, masked by `_create_masked_lm_predictions`."""
        raise NotImplementedError

    def _empty(self, count: int) -> Sample:
        raise NotImplementedError

    def _make_filler(self) -> Any:
        raise NotImplementedError


class _GivenSentences(SentenceOrder):
    """The samples of an array that a class has made itself.

    Args:
        source: the data.
        given: integers[num_samples, 3], first sentence, one past the last, target length in tokens.
        name: name of the dataset, for messages.
    """

    def __init__(self, source: SentenceSource, given: NDArray[Any], *, name: str) -> None:
        self.source = source
        self._given = given
        self._name = name

    def mapping(self) -> NDArray[Any]:
        return self._given

    @property
    def identity(self) -> str:
        return f"samples that {self._name} was given"

    @property
    def is_built(self) -> bool:
        return True

    def check(self) -> None:
        """Does nothing: what is in memory stays as it was given."""

    def verify(self) -> list[str]:
        """Returns nothing: whoever gave the samples knows."""
        return []
