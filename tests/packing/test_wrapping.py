"""Schedulers of users in one process, and errors in their plans."""

from __future__ import annotations

import numpy as np
import pytest
from tests.packing.items import item

from tokenloom import ConfigError
from tokenloom.errors import InputError
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.batch import get_batch_on_this_rank_for_sequence_packing
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import GroupRank, Place, place_of
from tokenloom.packing.pipeline import plan_global_batch
from tokenloom.packing.schedulers import (
    DefaultDynamicCPScheduler,
    DpBalancedScheduler,
    HybridCostBalancedScheduler,
    scheduler_map,
    wrap_data_iterator,
    wrap_dataset,
)

pytest.importorskip("torch")

CONFIG = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="mine")


class NextOnly:  # has no `__iter__`, as Megatron's `RerunDataIterator`
    def __init__(self, items):
        self._items = iter(items)

    def __next__(self):
        return next(self._items)


def wrap(monkeypatch, scheduler, *lengths):
    """Returns the tokens of each microbatch."""
    monkeypatch.setitem(scheduler_map, "mine", scheduler)
    items = [item(*range(10 * number, 10 * number + length)) for number, length in enumerate(lengths, start=1)]
    iterator, count, *_ = wrap_data_iterator(NextOnly(items), CONFIG, len(items))
    return [get_batch_on_this_rank_for_sequence_packing(iterator)[0][0].tolist() for _ in range(count)]


def test_the_lists_of_a_scheduler_are_packed(monkeypatch):
    class Backwards(BasePackingScheduler):
        def get_groups_and_subsamples(self, sample_id_seqlens):
            assert sample_id_seqlens == [(0, 1), (1, 2), (2, 1)]
            return [[[2, 1]], [[0]]]

    assert wrap(monkeypatch, Backwards, 1, 2, 1) == [[30, 20, 21], [10]]

    class Turned(DpBalancedScheduler):
        def get_groups_and_subsamples(self, sample_id_seqlens):
            return super().get_groups_and_subsamples(sample_id_seqlens)[::-1]

    assert wrap(monkeypatch, Turned, 8, 1) == [[20], [10, 11, 12, 13, 14, 15, 16, 17]]
    monkeypatch.setattr(Turned, "get_groups_and_subsamples", lambda self, pairs: [[[0, 1]]])
    assert wrap(monkeypatch, Turned, 1, 1) == [[10, 20]]


def test_a_scheduler_may_override_run(monkeypatch):
    class Twice(DpBalancedScheduler):
        def run(self, data_iterator, num_microbatches, dp_group, tp_group, pp_group, dp_cp_group, dev, config):
            assert (dp_group, tp_group, pp_group, dp_cp_group, str(dev)) == (None, None, None, None, "cpu")
            packs, count, total, squares = super().run(
                data_iterator, num_microbatches, dp_group, tp_group, pp_group, dp_cp_group, dev, config
            )
            packs = list(packs)
            return iter(packs + packs), 2 * count, total, squares

    assert wrap(monkeypatch, Twice, 2) == [[10, 11], [10, 11]]
    with pytest.raises(ConfigError, match=r"`wrap_dataset` does not call `Twice.run`"):
        wrap_dataset(None, [0], CONFIG)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[[0]]], "sub-sample 1 of 2: expected in 1 packs, found in 0"),
        ([[[0, 1, 1]]], "sub-sample 1 of 2: expected in 1 packs, found in 2"),
        ([[[0, 1]], [[5]]], "sub-sample 5 of 2: expected in 0 packs, found in 1"),
        ([[[0, 1]], [[]]], "microbatch 1 must have sub-samples for each of 1 ranks, got none on rank 0"),
        ([[[0], [1]]], "microbatch 0 must have sub-samples for each of 1 ranks, got 2 ranks"),
    ],
)
def test_plans_that_lose_or_double_sub_samples_are_refused(monkeypatch, groups, message):
    mine = type("Mine", (BasePackingScheduler,), {"get_groups_and_subsamples": lambda self, pairs: groups})
    with pytest.raises(ConfigError, match=message):
        wrap(monkeypatch, mine, 1, 1)


def test_ranks_share_packs_in_blocks():
    def plan(groups, **more):
        kind = type("Mine", (BasePackingScheduler,), {"get_groups_and_subsamples": lambda self, pairs: groups, **more})
        return kind(8, cp_size=2, dp_size=2).plan([1, 2])

    assert plan([[[1], [1], [0], [0]]]).assignments == (((1,), (1,), (0,), (0,)),)
    assert plan([[[1, 0]] * 4], is_dynamic_cp=True).cp_sizes.tolist() == [[4] * 4]
    with pytest.raises(ConfigError, match="ranks 0-1 must share a pack in microbatch 0") as caught:
        plan([[[1], [0], [0], [0]]])
    assert "is_dynamic_cp" in caught.value.hint
    with pytest.raises(ConfigError, match="ranks 0-1 must share a pack"):
        plan([[[1], [0], [0], [1]]], is_dynamic_cp=True)


def test_missing_required_keys_are_refused(monkeypatch):
    class Weighs(DpBalancedScheduler):
        def get_required_sample_keys(self):
            return [*super().get_required_sample_keys(), "weights"]

    with pytest.raises(InputError, match="sub-samples lack `weights`, which the scheduler requires"):
        wrap(monkeypatch, Weighs, 1)
    with pytest.raises(NotImplementedError, match="`BasePackingScheduler` must override"):
        BasePackingScheduler(8, 1, 1).plan([1])


def test_padding_for_shared_packs_never_makes_them_too_long(monkeypatch):
    alone = place_of(None)
    place = Place(alone.dp, GroupRank(4, 0), alone.tp, alone.pp, None, None)
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="default_dynamic_cp")
    for kind in (DefaultDynamicCPScheduler, HybridCostBalancedScheduler):
        scheduler = kind(8, cp_size=4, dp_size=1)
        planned = plan_global_batch(np.array([9, 7, 7, 7, 3, 3, 1, 1]), config, place, scheduler)
        assert planned.longest_part() <= 8
        assert planned.plan.cp_sizes.max() >= 2
