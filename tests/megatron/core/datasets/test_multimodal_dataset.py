"""`tokenloom.megatron.core.datasets.multimodal_dataset`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support import StandInTokenizer
from torch.utils.data import DataLoader

from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.gpt_dataset import MockGPTLowLevelDataset
from tokenloom.megatron.core.datasets.multimodal_dataset import MockMultimodalDataset, MultimodalDatasetConfig


def make(kind=MockMultimodalDataset, **changes):
    settings = {"random_seed": 1, "sequence_length": 8, "tokenizer": StandInTokenizer()}
    config = MultimodalDatasetConfig(**{**settings, "image_h": 2, "image_w": 3, **changes})
    data = MockGPTLowLevelDataset(config.tokenizer)
    return kind(data, None, np.arange(9, dtype=np.int32), 6, Split.train, config)


def test_samples_have_an_image():
    dataset = make()
    assert (dataset[0]["image"].shape, dataset[0]["image"].dtype) == ((3, 2, 3), torch.float32)
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    assert batch["image"].shape == (len(dataset), 3, 2, 3)
    assert dataset.item_hook is None
    with pytest.raises(AssertionError, match="`image_h`: must be 1 or more, got None"):
        make(image_h=None)


def test_hooks_are_called():
    dataset = make(preprocess_func=lambda sample: {"sum": sample["image"].sum() + sample["tokens"][0]})
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    assert batch["sum"].tolist() == [dataset[k]["sum"] for k in range(len(dataset))]

    class Fives(MockMultimodalDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, *rest = super()._query_document_sample_shuffle_indices(idx)
            return (np.full_like(text, 5), *rest)

    (batch, *_) = DataLoader(make(Fives), batch_size=6)
    assert (batch["tokens"] == 5).all()
    assert (batch["image"] == 0).all()
