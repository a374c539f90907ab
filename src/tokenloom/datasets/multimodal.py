"""Made-up text with images: for measuring a multimodal run without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.mock import MockGPTDataset
from tokenloom.datasets.outputs import BatchLayout, Output
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property


@dataclass
class MultimodalDatasetConfig(GPTDatasetConfig):
    """What multimodal datasets need to know beyond the settings of GPT datasets.

    Attributes:
        image_h: height of the images, in pixels. Required.
        image_w: their width. Required.
        preprocess_func: called with each sample of torch tensors that `dataset[k]` gives; what it returns is the
            sample. None to leave them as they are.
    """

    image_h: int | None = None
    image_w: int | None = None
    preprocess_func: Callable[[Sample], Sample] | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        for name in ("image_h", "image_w"):
            pixels = getattr(self, name)
            if pixels is None or pixels < 1:
                message = f"expected `{name}` of at least 1, found {pixels!r}"
                raise ConfigError(message)


class MockMultimodalDataset(MockGPTDataset):
    """Samples of `MockGPTDataset`, each with a black image: float32[3, image_h, image_w] under "image"."""

    config: MultimodalDatasetConfig

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors, as `preprocess_func` leaves it."""
        sample = to_tensors(self._sample_for_item(idx), copy_shared=True)
        return sample if self.config.preprocess_func is None else self.config.preprocess_func(sample)

    @property
    def item_hook(self) -> str | None:
        """What only `dataset[k]` asks: the function that samples are preprocessed by."""
        return None if self.config.preprocess_func is None else "preprocess_func"

    @cached_property
    def layout(self) -> BatchLayout:
        """The arrays of a sample."""
        assert self.config.image_h is not None  # the config has checked it
        assert self.config.image_w is not None
        shape = (3, self.config.image_h, self.config.image_w)
        image = Output(name="image", shape=shape, dtype=np.dtype(np.float32), initial=0.0)
        return BatchLayout((*super().layout.outputs, image))
