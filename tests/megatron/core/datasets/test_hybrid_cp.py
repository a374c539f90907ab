"""Hybrid context parallelism of `tokenloom.megatron.core.datasets.data_schedule`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tokenloom.megatron.core.datasets.data_schedule import BalancedCPScheduler, HybridCPDataLoaderWrapper
from tokenloom.packing.groups import ProcessGroups

CONFIG = SimpleNamespace(max_seqlen_per_dp_cp_rank=8)


def packed(*lengths, first=0):
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    tokens = torch.arange(first, first + bounds[-1])
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.ones(len(tokens)),
        "position_ids": tokens * 0,
        "cu_seqlens": torch.tensor([*bounds, bounds[-1]]),  # Megatron's datasets repeat the last boundary
        "max_seqlen": torch.tensor(max(lengths)),
        "dataset_id": torch.tensor(3),
    }


def test_items_are_this_ranks_samples_and_the_plan(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "megatron.core", raising=False)
    wrapper = HybridCPDataLoaderWrapper(iter([[packed(3, 8), packed(2, first=50)]]), CONFIG, ProcessGroups())
    samples, groups = next(iter(wrapper))
    assert sorted(number for row in groups for number in row[0]) == [0, 1, 2]
    assert [as_lists(samples)[k]["tokens"] for k in range(3)] == [[0, 1, 2], [*range(3, 11)], [50, 51]]
    assert set(samples[0]) == {"tokens", "labels", "loss_mask", "position_ids"}
    with pytest.raises(StopIteration):
        next(wrapper)
    assert next(HybridCPDataLoaderWrapper(None, CONFIG, ProcessGroups())) == (None, None)
    lengths, ids = BalancedCPScheduler(8, None).get_groups_and_subsamples([(0, 3), (1, 8)])
    assert sorted(zip(lengths, ids, strict=True)) == [([[3]], [[0]]), ([[8]], [[1]])]


@pytest.mark.peer
def test_items_equal_megatrons_on_one_rank(monkeypatch, rng):
    dist = torch.distributed
    theirs = pytest.importorskip("megatron.core.datasets.data_schedule").HybridCPDataLoaderWrapper
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        groups = SimpleNamespace(dp=world, tp=world, dp_cp=world, cp=world, pp=world)
        items = [[packed(*rng.integers(1, 9, size=5).tolist()) for _ in range(4)] for _ in range(3)]
        plain = [[{k: v for k, v in one.items() if k != "dataset_id"} for one in item] for item in items]
        expected = theirs(iter(plain), CONFIG, groups)
        for actual in HybridCPDataLoaderWrapper(iter(items), CONFIG, groups):
            (samples, plan), (their_samples, their_plan) = actual, next(expected)
            assert (plan, as_lists(samples)) == (their_plan, as_lists(their_samples))
    finally:
        dist.destroy_process_group()


def as_lists(samples):
    return {number: {name: value.tolist() for name, value in sample.items()} for number, sample in samples.items()}
