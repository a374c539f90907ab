"""Batches as plain lists."""

from __future__ import annotations

import torch

from tokenloom.datasets.tensors import SampleBatch
from tokenloom.megatron.listed_samples import listed, numbers_of


def test_samples_of_a_batch_are_views_of_it():
    tensors = {"tokens": torch.arange(6).reshape(2, 3), "dataset_id": torch.tensor([4, 5])}
    batch = SampleBatch(tensors, 2)
    assert numbers_of(batch, "dataset_id").tolist() == [4, 5]
    samples = listed(batch)
    assert type(samples) is list
    samples[1]["tokens"][:] = 9
    assert tensors["tokens"].tolist() == [[0, 1, 2], [9, 9, 9]]


def test_samples_that_were_made_one_by_one_stay_as_they_are():
    samples = [{"tokens": 1}]
    assert listed(samples) is samples
    assert numbers_of(samples, "dataset_id") is None
