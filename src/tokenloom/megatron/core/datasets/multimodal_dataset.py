"""`megatron.core.datasets.multimodal_dataset`: samples with images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenloom.datasets import mock as multimodal
from tokenloom.datasets.tensors import Sample
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset


def _as_it_is(sample: Sample) -> Sample:
    return sample


@dataclass
class MultimodalDatasetConfig(multimodal.MultimodalDatasetConfig, GPTDatasetConfig):
    """The settings of multimodal datasets, those of GPT checked as the reference checks them."""

    create_attention_mask: bool = True
    preprocess_func: Callable[[Sample], Sample] | None = _as_it_is


class MockMultimodalDataset(multimodal.MockMultimodalDataset, MockGPTDataset):
    """Samples of `MockGPTDataset`, each with a black image: float32[3, image_h, image_w] under "image"."""

    config: MultimodalDatasetConfig

    @property
    def item_hook(self) -> str | None:
        """The hook that only `dataset[k]` calls: a preprocessing function, or one of GPT datasets."""
        if self.config.preprocess_func not in (None, _as_it_is):
            return "preprocess_func"
        return super(multimodal.MockMultimodalDataset, self).item_hook

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a preprocessed sample as torch tensors."""
        sample = MockGPTDataset.__getitem__(self, idx)
        if "image" not in sample:  # a sample made by hooks
            sample["image"] = torch.zeros((3, self.config.image_h, self.config.image_w), dtype=torch.float32)
        return sample if self.config.preprocess_func is None else self.config.preprocess_func(sample)
