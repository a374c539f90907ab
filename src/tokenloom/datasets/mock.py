"""Made-up GPT data, the same for everyone: for measuring a run without data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tokenizer import TokenizerLike
from tokenloom.errors import ConfigError


class MockGPTLowLevelDataset:
    """100,000 documents of 1 to 4095 tokens: 1, 2, 3, … modulo the vocabulary, then end-of-document.

    Args:
        tokenizer: whose vocabulary size and end-of-document id to use.
    """

    seed = 0
    size = 100_000
    max_sequence_length = 4096

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.vocab_size: int = tokenizer.vocab_size
        self.eod_token: int = tokenizer.eod
        self.sequence_lengths: NDArray[np.int32] = np.random.default_rng(seed=self.seed).integers(
            low=1, high=self.max_sequence_length, size=self.size, dtype=np.int32
        )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> NDArray[np.int64]:
        """Returns a document: int64[length]."""
        return self.get(idx)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> NDArray[np.int64]:
        """Returns tokens [offset, offset + length) of a document; all from `offset` on when length is None."""
        available = int(self.sequence_lengths[idx])
        stop = available if length is None else min(offset + length, available)
        one = np.ones(1, dtype=np.int64)
        return self.gather(one * idx, one * offset, one * max(stop - offset, 0))

    def gather(
        self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the tokens of many spans, back to back: int64[sum(lengths)]."""
        ends = np.cumsum(lengths)
        offsets = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths - starts, lengths)
        last = np.repeat(self.sequence_lengths[sequences], lengths) - 1
        return np.where(offsets == last, self.eod_token, (offsets + 1) % self.vocab_size)


def check_names_no_data(config: BlendedMegatronDatasetConfig, *, otherwise: type) -> None:
    """Checks that a configuration asks for made-up data.

    Args:
        config: the settings.
        otherwise: the class that reads data.

    Raises:
        ConfigError: it names data.
    """
    if not config.mock:
        message = "expected a config without `blend` for made-up data, found one that names data"
        raise ConfigError(message, hint=f"use {otherwise.__name__}")


class MockGPTDataset(GPTDataset):
    """GPT samples from made-up data; takes the place of `GPTDataset` when a config names no data."""

    def __init__(
        self,
        dataset: MockGPTLowLevelDataset,
        dataset_path: str | None,
        indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: GPTDatasetConfig,
    ) -> None:
        check_names_no_data(config, otherwise=GPTDataset)
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of documents."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> Any:
        """Returns the made-up documents; the path does not matter."""
        return MockGPTLowLevelDataset(config.tokenizer)
