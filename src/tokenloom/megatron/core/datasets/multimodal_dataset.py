"""`megatron.core.datasets.multimodal_dataset`: mock samples, each of a text and an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenloom.datasets import mock as multimodal
from tokenloom.datasets.tensors import Sample
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset


def _identity(sample: Sample) -> Sample:
    return sample


@dataclass
class MultimodalDatasetConfig(multimodal.MultimodalDatasetConfig, GPTDatasetConfig):
    """Settings of multimodal datasets, with Megatron's validation of the settings of `GPTDatasetConfig`."""

    create_attention_mask: bool = True
    preprocess_func: Callable[[Sample], Sample] | None = _identity


class MockMultimodalDataset(multimodal.MockMultimodalDataset, MockGPTDataset):
    """A dataset of samples of `MockGPTDataset`, each with a black image as "image", float32[3, image_h, image_w]."""

    config: MultimodalDatasetConfig

    @property
    def item_hook(self) -> str | None:
        """The name of the override or array that native kernels would ignore; None if kernels may fill the samples."""
        if self.config.preprocess_func not in (None, _identity):
            return "preprocess_func"
        return super(multimodal.MockMultimodalDataset, self).item_hook

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample of torch tensors, after `preprocess_func`."""
        sample = MockGPTDataset.__getitem__(self, idx)
        if "image" not in sample:  # made by hooks, not by kernels
            sample["image"] = torch.zeros((3, self.config.image_h, self.config.image_w), dtype=torch.float32)
        return sample if self.config.preprocess_func is None else self.config.preprocess_func(sample)
