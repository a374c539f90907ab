"""Hybrid context parallelism of `tokenloom.megatron.core.datasets.data_schedule`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tokenloom.megatron.core.datasets.data_schedule import (
    BalancedCPScheduler,
    HybridCPDataLoaderWrapper,
)
from tokenloom.packing.groups import ProcessGroups

CONFIG = SimpleNamespace(max_seqlen_per_dp_cp_rank=8)


def packed(*lengths, first=0):
    """Returns a sample as the reference's packed datasets give it, with one boundary too many."""
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    tokens = torch.arange(first, first + bounds[-1])
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.ones(len(tokens)),
        "position_ids": tokens * 0,
        "cu_seqlens": torch.tensor([*bounds, bounds[-1]]),
        "max_seqlen": torch.tensor(max(lengths)),
        "dataset_id": torch.tensor(3),
    }


def test_each_item_is_what_this_rank_works_on_and_the_plan(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "megatron.core", raising=False)
    wrapper = HybridCPDataLoaderWrapper(iter([[packed(3, 8), packed(2, first=50)]]), CONFIG, ProcessGroups())
    samples, groups = next(iter(wrapper))
    assert sorted(number for row in groups for number in row[0]) == [0, 1, 2]
    assert {number: sample["tokens"].tolist() for number, sample in samples.items()} == {
        0: [0, 1, 2],
        1: [3, 4, 5, 6, 7, 8, 9, 10],
        2: [50, 51],
    }
    assert set(samples[0]) == {"tokens", "labels", "loss_mask", "position_ids"}
    with pytest.raises(StopIteration):
        next(wrapper)
    assert next(HybridCPDataLoaderWrapper(None, CONFIG, ProcessGroups())) == (None, None)
    lengths, ids = BalancedCPScheduler(8, None).get_groups_and_subsamples([(0, 3), (1, 8)])
    assert sorted(zip(lengths, ids, strict=True)) == [([[3]], [[0]]), ([[8]], [[1]])]


@pytest.mark.peer
def test_what_the_reference_gives_one_rank(monkeypatch, rng):
    """Its code, with the calls of CUDA taken away."""
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
        for found in HybridCPDataLoaderWrapper(iter(items), CONFIG, groups):
            samples, plan = next(expected)
            assert found[1] == plan
            assert {n: {k: v.tolist() for k, v in one.items()} for n, one in found[0].items()} == {
                n: {k: v.tolist() for k, v in one.items()} for n, one in samples.items()
            }
    finally:
        dist.destroy_process_group()
