"""Mock GPT datasets, with or without images, to measure training without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.protocols import Int64s
from tokenloom.datasets.sample_arrays import BatchLayout, Output
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.datasets.tokenizer import TokenizerLike
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property


class MockGPTLowLevelDataset:
    """A low-level dataset of 100,000 mock documents of 1 to 4095 tokens.

    A document has the tokens 1, 2, 3, … modulo the vocabulary size, and ends with the end-of-document id.

    Args:
        tokenizer: provides the vocabulary size and the end-of-document id.
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
        return len(self.sequence_lengths)

    def __getitem__(self, idx: int) -> Int64s:
        return self.get(idx)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Int64s:
        """Returns tokens [offset, offset + length) of a document; all from `offset` on if `length` is None."""
        available = int(self.sequence_lengths[idx])
        stop = available if length is None else min(offset + length, available)
        one = np.ones(1, dtype=np.int64)
        return self.gather(one * idx, one * offset, one * max(stop - offset, 0))

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> Int64s:
        """Returns the concatenated tokens of many spans: int64[sum(lengths)]."""
        ends = np.cumsum(lengths)
        offsets = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths - starts, lengths)
        last = np.repeat(self.sequence_lengths[sequences], lengths) - 1
        return np.where(offsets == last, self.eod_token, (offsets + 1) % self.vocab_size)


class MockGPTDataset(GPTDataset):
    """A `GPTDataset` of mock data; the builder uses it if the config has no data."""

    mock_of: ClassVar[type | None] = GPTDataset

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> Any:
        """Returns the mock documents; ignores the path."""
        return MockGPTLowLevelDataset(config.tokenizer)


@dataclass
class MultimodalDatasetConfig(GPTDatasetConfig):
    """Settings of multimodal datasets.

    Attributes:
        image_h: height of images, in pixels. Required.
        image_w: width of images, in pixels. Required.
        preprocess_func: function from a sample of torch tensors to the sample that `dataset[k]` returns; None to change
            nothing.
    """

    image_h: int | None = None
    image_w: int | None = None
    preprocess_func: Callable[[Sample], Sample] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image_h", "image_w"):
            if (pixels := getattr(self, name)) is None or pixels < 1:
                raise ConfigError(f"`{name}`: must be 1 or more, got {pixels!r}")


class MockMultimodalDataset(MockGPTDataset):
    """A `MockGPTDataset` whose samples also have a black image, "image" float32[3, image_h, image_w]."""

    config: MultimodalDatasetConfig

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors, after `preprocess_func`."""
        sample = to_tensors(self._sample_for_item(idx), copy_shared=True)
        return sample if self.config.preprocess_func is None else self.config.preprocess_func(sample)

    @property
    def item_hook(self) -> str | None:
        """Name of the setting whose function only `dataset[k]` calls: "preprocess_func" if it is set; else None."""
        return None if self.config.preprocess_func is None else "preprocess_func"

    @cached_property
    def layout(self) -> BatchLayout:
        shape = (3, self.config.image_h or 0, self.config.image_w or 0)
        image = Output(name="image", shape=shape, dtype=np.dtype(np.float32))
        return BatchLayout((*super().layout.outputs, image))

    def _fill(self, positions: Int64s, out: Sample, rows: Int64s | None = None) -> None:
        super()._fill(positions, out, rows)
        out["image"][... if rows is None else rows] = 0
