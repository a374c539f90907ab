"""`tokenloom.megatron.core.datasets.megatron_dataset`."""

from __future__ import annotations

import torch
from tests.support import make_config

from tokenloom.datasets import base
from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.megatron_dataset import MegatronDataset


class Numbers(MegatronDataset):
    """A class of a user's own, with no more than it must have."""

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, idx):
        return {"number": torch.tensor(self.dataset[self.indices[idx]])}


def test_a_class_is_a_dataset_of_torch_and_of_ours():
    numbers = Numbers([5, 6, 7, 8], None, range(1, 4), None, Split.train, make_config(None))
    assert isinstance(numbers, torch.utils.data.Dataset)
    assert isinstance(numbers, base.MegatronDataset)
    assert [(numbers + numbers)[k]["number"].item() for k in range(6)] == [6, 7, 8] * 2
