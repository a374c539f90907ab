"""Packing schedulers of `tokenloom.megatron.core.datasets`: a training loop's calls, their steps, custom schedulers."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from tokenloom import packing
from tokenloom.errors import ConfigError, InputError
from tokenloom.megatron.core.datasets import data_schedule
from tokenloom.megatron.core.datasets import data_schedule_utils as utils
from tokenloom.megatron.core.datasets.data_schedule import (
    BalancedCPScheduler,
    BasePackingScheduler,
    DefaultDynamicCPScheduler,
    DpBalancedScheduler,
    HybridCPDataLoaderWrapper,
    PackingSchedulerEnum,
    get_batch_on_this_rank_for_sequence_packing,
    scheduler_map,
    wrap_data_iterator,
)
from tokenloom.packing.groups import ProcessGroups


def sample(*tokens, padded=None, **more):
    size = len(tokens) if padded is None else padded
    row = torch.nn.functional.pad(torch.tensor(tokens), (0, size - len(tokens)), value=99)
    lengths = {"original_seq_len": torch.tensor([len(tokens)]), "padded_seq_len": torch.tensor([size])}
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(size), "position_ids": row * 0, **lengths, **more}


ALONE = ProcessGroups()


def config(scheduler="dp_balanced", stages=None, **more):
    sizes = {"max_seqlen_per_dp_cp_rank": 8, "microbatch_group_size_per_vp_stage": 1}
    sizes["virtual_pipeline_model_parallel_size"] = stages
    return SimpleNamespace(sequence_packing_scheduler=scheduler, **sizes, **more)


def tokens_of(wrapped, groups=ALONE, **more):
    iterator, count, *_ = wrapped
    read = partial(get_batch_on_this_rank_for_sequence_packing, iterator, pg_collection=groups, **more)
    return [read()[0].tolist()[0] for _ in range(count)]


def count_left(iterator):
    return sum(1 for _ in iter(lambda: next(iterator, None), None))  # Megatron's iterators only have `__next__`


def test_sums_are_floats_of_padded_lengths():
    items = [sample(1, 2, padded=4), [sample(3, 4, 5, 6), sample(7)]]
    iterator, count, total, squares = wrap_data_iterator(iter(items), config(), 2, ALONE)
    assert (type(count), count, type(total), total, squares) == (int, 2, float, 9.0, 33.0)
    assert set(next(iterator)) >= {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"}
    iterators, *_ = wrap_data_iterator([iter(items), None], config(stages=2), 2, ALONE)
    assert [count_left(one) for one in iterators] == [2, 2]
    assert count_left(wrap_data_iterator(iter(items), config(stages=1), 2, ALONE)[0]) == 2
    with pytest.raises(StopIteration):
        wrap_data_iterator(iter([sample(1)]), config(), 2, ALONE)
    with pytest.raises(AssertionError, match="no data iterator"):
        wrap_data_iterator(None, config(), 2, ALONE)


def test_custom_schedulers(monkeypatch):
    class Backwards(DpBalancedScheduler):
        def get_groups_and_subsamples(self, sample_id_seqlens):
            return [[ids[::-1] for ids in row] for row in super().get_groups_and_subsamples(sample_id_seqlens)]

    class Whole(BasePackingScheduler):  # runs Megatron's pipeline step by step
        def get_groups_and_subsamples(self, sample_id_seqlens):
            return [[[number]] for number, _ in sample_id_seqlens]

        def run(self, data_iterator, num_microbatches, dp_group, tp_group, pp_group, dp_cp_group, dev, config):
            found = utils.get_batch_and_global_seqlens(data_iterator, num_microbatches, dp_group)
            batch, pairs, ids, offsets, lengths = found
            groups = self.get_groups_and_subsamples(pairs)
            given = (batch, ids, pairs, groups, offsets, dp_group, tp_group, dp_cp_group, 1)
            mine = utils.reroute_samples_to_dcp_ranks(*given)
            packs = utils.build_packed_microbatches([[mine[i] for i in row[0]] for row in groups], dev)
            iterator = utils.create_data_iterator(packs, pp_group, tp_group, config)
            return iterator, len(packs), float(sum(lengths)), 0.0

    monkeypatch.setitem(scheduler_map, PackingSchedulerEnum.DP_BALANCED, Backwards)
    assert tokens_of(wrap_data_iterator(iter([sample(1), sample(2)]), config("DP_BALANCED"), 2, ALONE)) == [[2, 1]]
    for module in (data_schedule, packing):
        monkeypatch.setitem(module.scheduler_map, "mine", Whole)
        wrapped = module.wrap_data_iterator(iter([sample(1), sample(2)]), config("mine"), 2, ALONE)
        assert tokens_of(wrapped) == [[1], [2]]


def test_schedulers_have_megatrons_names_and_settings():
    assert set(scheduler_map) == set(PackingSchedulerEnum) == set(packing.scheduler_map) - {"prefix_trees"}  # no THD
    assert PackingSchedulerEnum["DP_BALANCED"] == "dp_balanced"
    scheduler = DefaultDynamicCPScheduler(8, 2, 2, None, max_num_seqs=4, min_cp_size=2)
    assert (scheduler.max_seq_len_per_rank, scheduler.total_hdp_gpus, scheduler.min_cp_size) == (8, 4, 2)
    assert (scheduler.is_dynamic_cp, DpBalancedScheduler(8, 2, 2, None).max_seq_len_all_ranks) == (True, 16)
    assert scheduler.get_groups_and_subsamples([(0, 3), (1, 9)]) == [[[1], [1], [0], [0]]]
    assert isinstance(scheduler, DpBalancedScheduler)
    for name, options in (("default_dynamic_cp", {"min_dynamic_context_parallel_size": 1}), ("cost_balanced", {})):
        assert tokens_of(wrap_data_iterator(iter([sample(1, 2)]), config(name, **options), 1, ALONE)) == [[1, 2]]
    assert data_schedule._get_scheduler_max_real_num_seqs(config(thd_max_packed_sequences=3)) == 3
    too_few = config(thd_max_packed_sequences=1, pad_packed_seq_alignment="max")
    with pytest.raises(ValueError, match="thd_max_packed_sequences"):
        data_schedule._get_scheduler_max_real_num_seqs(too_few)
    with pytest.raises(ConfigError, match="unknown scheduler 'best'"):
        wrap_data_iterator(iter([sample(1)]), config("best"), 1, ALONE)


def test_packs_of_one_shape():
    settings = config(pad_packed_seq_alignment="max", thd_max_packed_sequences=3, thd_tail_padding_policy="extend_last")
    items = [sample(1, 2, padded=4), sample(3, 4, 5, 6, 7, 8), sample(9)]
    iterator, count, *_ = wrap_data_iterator(iter(items), settings, 3, ALONE)
    for _ in range(count):
        batch = get_batch_on_this_rank_for_sequence_packing(iterator, pg_collection=ALONE, config=settings)
        assert batch[0].shape == batch[6].shape == (1, 8)
        assert len(batch[5].cu_seqlens_q) == 4
        assert (batch[0] == 0).tolist() == batch[6].tolist()


def test_packs_of_dynamic_context_parallelism():
    pack = {**sample(1, 2), "cu_seqlens": torch.tensor([0, 2]), "cu_seqlens_padded": torch.tensor([0, 2])}
    pack |= {"max_seqlen": torch.tensor([2]), "local_cp_size": torch.tensor([1], dtype=torch.int32)}
    *_, params, _ = get_batch_on_this_rank_for_sequence_packing(iter([pack]), dynamic_cp=True, pg_collection=ALONE)
    assert (params.local_cp_size, params.max_seqlen_q) == (1, 2)
    del pack["local_cp_size"]
    with pytest.raises(AssertionError, match="a pack has no `local_cp_size`"):
        get_batch_on_this_rank_for_sequence_packing(iter([pack]), dynamic_cp=True, pg_collection=ALONE)


def test_missing_arguments_are_megatrons(monkeypatch):
    for name in ("megatron.training.global_vars", "megatron.core.num_microbatches_calculator"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match="no `config` given, and Megatron is not initialized"):
        wrap_data_iterator(iter([]))
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", SimpleNamespace(_GLOBAL_ARGS=config()))
    with pytest.raises(ConfigError, match="no `num_microbatches` given"):
        wrap_data_iterator(iter([]))
    calculator = SimpleNamespace(_GLOBAL_NUM_MICROBATCHES_CALCULATOR=SimpleNamespace(get=lambda: 2))
    monkeypatch.setitem(sys.modules, "megatron.core.num_microbatches_calculator", calculator)
    monkeypatch.delitem(sys.modules, "megatron.core.parallel_state", raising=False)
    assert tokens_of(wrap_data_iterator(iter([sample(1), sample(2)])), None) == [[1, 2]]


@pytest.mark.peer
def test_groups_are_those_of_megatrons_parallel_state():
    state = pytest.importorskip("megatron.core.parallel_state")
    rerun = pytest.importorskip("megatron.core.rerun_state_machine")
    params = pytest.importorskip("megatron.core.packed_seq_params")
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        state.initialize_model_parallel()
        data = rerun.RerunDataIterator(iter([sample(1), sample(2)]))  # has `__next__` only
        iterator, count, *_ = wrap_data_iterator(data, config(), 2)
        assert (type(iterator), count) == (rerun.RerunDataIterator, 1)
        batch = get_batch_on_this_rank_for_sequence_packing(iterator)
        assert (batch[0].tolist(), type(batch[5])) == ([[1, 2]], params.PackedSeqParams)
    finally:
        state.destroy_model_parallel()
        dist.destroy_process_group()


def test_the_steps_one_by_one():
    packed = {name: value for name, value in sample(1, 2, 3, 4, 5).items() if not name.endswith("len")}
    packed |= {"tokens": packed["tokens"].view(1, -1), "cu_seqlens": torch.tensor([[0, 3, 5, 5]])}
    batch, pairs, ids, offsets, lengths = utils.get_batch_and_global_seqlens(iter([[packed]]), 1, None)
    assert (pairs, ids.tolist(), offsets.tolist(), lengths) == ([(0, 3), (1, 2)], [0, 1], [0, 2], [3, 2])
    assert (ids.dtype, offsets.dtype) == (torch.int32, torch.int32)
    items = iter([sample(1, 2, padded=4), [sample(3)]])
    batch, pairs, ids, offsets, lengths = utils.get_batch_and_global_seqlens(items, 2, None)
    plan = [[[1, 0]]]
    for groups in ((None, None, None, 1), (None, None)):  # as the reference calls it, and its development branch
        mine = utils.reroute_samples_to_dcp_ranks(batch, ids, pairs, plan, offsets, *groups)
        assert {number: one["tokens"].tolist() for number, one in mine.items()} == {0: [1, 2], 1: [3]}
    packs = utils.build_packed_microbatches([[mine[1], mine[0]]], "cpu")
    (dynamic,) = utils.build_packed_microbatches(mine, plan, 0, "cpu", True)
    assert dynamic.pop("local_cp_size") == 1
    for pack in (packs[0], dynamic):
        rows = {"tokens": [3, 1, 2, 0, 0], "labels": [4, 2, 3, 0, 0], "loss_mask": [1, 1, 1, 0, 0]}
        bounds = {"cu_seqlens_padded": [0, 1, 5], "max_seqlen": 4, "cu_seqlens": [0, 1, 3]}
        found = {name: value.tolist() for name, value in pack.items()}
        assert found == {**rows, "position_ids": [0] * 5, **bounds}
        assert {pack[name].dtype for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")} == {torch.int32}
    assert utils.broadcast_to_pp_group(packs, 1, 5.0, 17.0, None, "cpu") == (packs, 1, 5.0, 17.0)
    assert utils.broadcast_scalars([1, 5.0], None, "cpu") == [1, 5.0]
    one, two = (SimpleNamespace(virtual_pipeline_model_parallel_size=count) for count in (None, 2))
    iterators = utils.create_data_iterator(packs, None, None, two)
    assert all("tokens" in next(each) for each in (utils.create_data_iterator(packs, None, None, one), *iterators))


def test_partitioned_indices_and_padding_by_boundaries():
    assert utils.get_thd_partitioned_indices(torch.tensor([0, 4, 8]), 8, 2, 1).dtype == torch.int32
    with pytest.raises(AssertionError, match="`cu_seqlens`: must end at 7 tokens, got 8"):
        utils.get_thd_partitioned_indices(torch.tensor([0, 4, 8]), 7, 2, 1)
    mask = data_schedule._build_thd_padding_mask(torch.tensor([0, 3, 5]), torch.tensor([0, 4, 8]))
    assert mask.int().tolist() == [0, 0, 0, 1, 0, 0, 1, 1]
    batch = {"tokens": torch.arange(1, 9), "labels": None, "other": 1}
    data_schedule._sanitize_thd_padding_values(batch, mask)
    assert batch["tokens"].tolist() == [1, 2, 3, 0, 5, 6, 0, 0]
    with pytest.raises(AssertionError, match="expected `tokens` of shape"):
        data_schedule._sanitize_thd_padding_values({"tokens": torch.ones(3)}, mask)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([5], "must be a mapping of tensors, or a list of mappings, got int"),
        ([[sample(1), {"tokens": torch.ones(2)}]], "missing in item 0 of the data iterator, which has tokens"),
        ([{**sample(1), "tokens": torch.ones(2, 2)}], r"`tokens` of item 0 .* must be a vector, got shape \[2, 2\]"),
    ],
)
def test_invalid_samples(items, message):
    with pytest.raises(InputError, match=message):
        utils.get_batch_and_global_seqlens(iter(items), len(items), None)


def test_a_tensor_of_another_length():
    batch, pairs, ids, offsets, _ = utils.get_batch_and_global_seqlens(iter([sample(1, 2)]), 1, None)
    batch[0]["labels"] = torch.ones(1)
    with pytest.raises(InputError, match="has 2 tokens, but 1 elements of `labels`"):
        utils.reroute_samples_to_dcp_ranks(batch, ids, pairs, [[[0]]], offsets, None, None)
    with pytest.raises(StopIteration):
        utils.get_batch_and_global_seqlens(iter([]), 1, None)


def packed(*lengths, first=0):
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    tokens = torch.arange(first, first + bounds[-1])
    rows = {"tokens": tokens, "labels": tokens + 1, "loss_mask": torch.ones(len(tokens)), "position_ids": tokens * 0}
    rows["cu_seqlens"] = torch.tensor([*bounds, bounds[-1]])  # Megatron's datasets repeat the last boundary
    return {**rows, "max_seqlen": torch.tensor(max(lengths)), "dataset_id": torch.tensor(3)}


def test_items_are_this_ranks_samples_and_the_plan(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "megatron.core", raising=False)
    wrapper = HybridCPDataLoaderWrapper(iter([[packed(3, 8), packed(2, first=50)]]), config(), ProcessGroups())
    samples, groups = next(iter(wrapper))
    assert sorted(number for row in groups for number in row[0]) == [0, 1, 2]
    assert [sample_lists(samples)[k]["tokens"] for k in range(3)] == [[0, 1, 2], [*range(3, 11)], [50, 51]]
    assert set(samples[0]) == {"tokens", "labels", "loss_mask", "position_ids"}
    with pytest.raises(StopIteration):
        next(wrapper)
    assert next(HybridCPDataLoaderWrapper(None, config(), ProcessGroups())) == (None, None)
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
        expected = theirs(iter(plain), config(), groups)
        for actual in HybridCPDataLoaderWrapper(iter(items), config(), groups):
            (samples, plan), (their_samples, their_plan) = actual, next(expected)
            assert (plan, sample_lists(samples)) == (their_plan, sample_lists(their_samples))
    finally:
        dist.destroy_process_group()


def sample_lists(samples):
    return {number: {name: value.tolist() for name, value in sample.items()} for number, sample in samples.items()}
