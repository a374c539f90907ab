"""Packs in one process: from the items of an iterator or a dataset to the batch of a rank."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.datasets.conversations import settings as chat_settings
from tests.reference.packing import NAMES, pack, part_of, partition, sample
from tests.support import few_examples

from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.conversations import VarlenDataset
from tokenloom.errors import ConfigError, DatasetFormatError, InputError
from tokenloom.packing.base_scheduler import BasePackingScheduler
from tokenloom.packing.batch import (
    DTYPES,
    PackedSeqParams,
    SourcedPackedSeqParams,
    batch_in,
    build_packed_microbatches,
    context_parallel_indices,
    decode_metadata,
    encode_metadata,
    from_bytes,
    get_batch_on_this_rank_for_sequence_packing,
    num_bytes,
    padding_mask_of,
    take_apart,
    to_bytes,
)
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.cost import PolynomialCost
from tokenloom.packing.groups import Channel, GroupRank, ProcessGroups, place_in, place_of
from tokenloom.packing.pipeline import iterators_over, plan_global_batch, run_pipeline, sums_of
from tokenloom.packing.schedulers import (
    DefaultDynamicCPScheduler,
    DpBalancedScheduler,
    HybridCostBalancedScheduler,
    make_scheduler,
    scheduler_map,
    wrap_data_iterator,
    wrap_dataset,
)


def item(*tokens, **more):
    row = torch.tensor(tokens)
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(len(row)), "position_ids": row * 0 + 5, **more}


def sub_sample(number, length, padded):
    tensors = {name: torch.from_numpy(value) for name, value in sample(number, length).items()}
    return {**tensors, "original_seq_len": length, "padded_seq_len": padded}


CONFIG = PackingConfig(max_seqlen_per_dp_cp_rank=8)
NAMED = [sub_sample(0, 3, 4) | {"dataset_id": 5}, sub_sample(1, 2, 2)]


def test_an_item_is_one_sub_sample_without_its_padding():
    (found,) = take_apart([item(1, 2, 0, 0, original_seq_len=torch.tensor([2]), padded_seq_len=torch.tensor([4]))])
    assert (found["tokens"].tolist(), found["labels"].tolist()) == ([1, 2], [2, 3])
    assert (found["original_seq_len"], found["padded_seq_len"]) == (2, 4)
    # Lists, rows and other dtypes are accepted.
    rows = {name: value[None].to(torch.int32) for name, value in item(1, 2).items()}
    first, second = take_apart([[rows, {name: value.numpy() for name, value in item(3).items()}]])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert (first["tokens"].dtype, first["loss_mask"].dtype) == (torch.int64, torch.float32)


def test_a_pack_is_split_at_its_boundaries():
    bounds = {"cu_seqlens": torch.tensor([[0, 3, 6, 6]]), "cu_seqlens_original": torch.tensor([[0, 2, 3, 3]])}
    first, second = take_apart([item(1, 2, 0, 3, 0, 0, **bounds)])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert [(one["original_seq_len"], one["padded_seq_len"]) for one in (first, second)] == [(2, 3), (1, 3)]
    # Sub-samples keep the number of their dataset.
    packed = item(1, 2, 0, 3, 0, 0, cu_seqlens=torch.tensor([0, 3, 6, 6]))
    found = take_apart([item(1, dataset_id=torch.tensor([2])), item(1), packed | {"dataset_id": 1}])
    assert [one.get("dataset_id") for one in found] == [2, None, 1, 1]
    found = take_apart([packed | {"dataset_id": torch.tensor([[3, 4]])}])
    assert [one["dataset_id"] for one in found] == [3, 4]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tokens": torch.zeros(2)}, "`labels`, `position_ids`, `loss_mask` missing in item 0 of the data iterator"),
        (item(1, 2, labels=torch.zeros(3)), "item 0 of the data iterator has 2 tokens, but 3 elements of `labels`"),
        (item(1, 2, original_seq_len=3), r"has 2 tokens and cannot have a sub-sample of 3 tokens"),
        (item(1, 2, original_seq_len=2, padded_seq_len=1), r"cannot have a sub-sample of 2 tokens \(padded: 1\)"),
        (
            item(1, 2) | {"tokens": torch.zeros(2, 2)},
            r"`tokens` of item 0 of the data iterator must be a vector, got shape \[2, 2\]",
        ),
        (item(1, dataset_id=torch.tensor([1, 2])), "has 2 elements of `dataset_id` for 1 sub-samples"),
        (7, "item 0 of the data iterator must be a mapping of tensors, or a list of mappings, got int"),
    ],
)
def test_invalid_sub_samples_are_refused(wrong, text):
    with pytest.raises(InputError, match=text):
        list(take_apart([wrong]))


def test_a_pack_is_its_concatenated_sub_samples_and_bytes_keep_all_values(rng):
    samples = [sub_sample(0, 3, 4), sub_sample(1, 4, 4)]
    (found,) = build_packed_microbatches([samples], "cpu")
    expected = pack([sample(0, 3), sample(1, 4)], 4)
    assert all(found[name].tolist() == expected[name] for name in NAMES)
    assert (found["cu_seqlens"].tolist(), found["cu_seqlens_padded"].tolist()) == ([0, 3, 7], [0, 4, 8])
    assert (found["cu_seqlens"].dtype, int(found["max_seqlen"])) == (torch.int32, 4)
    assert "local_cp_size" not in found
    lengths = rng.integers(0, 6, size=7).tolist()
    samples = [sub_sample(number, length, length) for number, length in enumerate(lengths)]
    data = to_bytes(samples)
    assert (len(data), len(data) % 8) == (num_bytes(lengths), 0)
    for before, after in zip(samples, from_bytes(data, lengths), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in NAMES)


def test_the_padding_mask_follows_from_the_boundaries():
    mask = padding_mask_of(torch.tensor([0, 3, 3, 5]), torch.tensor([0, 4, 6, 8]))
    assert mask.tolist() == [False, False, False, True, True, True, False, False]
    with pytest.raises(InputError, match="do not fit cu_seqlens"):
        padding_mask_of(torch.tensor([0, 5]), torch.tensor([0, 4]))


@pytest.mark.parametrize(
    ("grouped", "message"),
    [
        ([[sub_sample(0, 1, 1)], []], "microbatch 1 has no sub-samples"),
        ([[sub_sample(0, 1, 2**31)]], r"a pack has 2147483648 tokens, more than 2\*\*31 - 1"),
    ],
)
def test_packs_that_cannot_be_made_are_refused(grouped, message):
    with pytest.raises(ConfigError, match=message):
        build_packed_microbatches(grouped, "cpu")


def test_one_process_needs_no_groups():
    iterator, count, total, squares = wrap_data_iterator(iter([item(1, 2, 3), item(4, 5, 6, 7, 8, 9)]), CONFIG, 2)
    assert (count, total, squares) == (2, 9, 45)
    tokens, labels, loss_mask, nothing, position_ids, params, mask = get_batch_on_this_rank_for_sequence_packing(
        iterator
    )
    assert (tokens.tolist(), labels.tolist(), nothing) == ([[1, 2, 3]], [[2, 3, 4]], None)
    assert (loss_mask.tolist(), position_ids.tolist(), mask.tolist()) == ([[1.0] * 3], [[5] * 3], [[False] * 3])
    assert (params.qkv_format, params.cu_seqlens_q.tolist(), params.max_seqlen_q) == ("thd", [0, 3], 3)
    get_batch_on_this_rank_for_sequence_packing(iterator)
    with pytest.raises(StopIteration):
        get_batch_on_this_rank_for_sequence_packing(iterator)


def test_padding_is_zero_and_attention_knows_where_it_is():
    padded = {
        **item(1, 2, 9, 9),
        "cu_seqlens": torch.tensor([0, 2]),
        "cu_seqlens_padded": torch.tensor([0, 4]),
        "max_seqlen": torch.tensor(4),
    }
    tokens, labels, loss_mask, _, position_ids, _, mask = get_batch_on_this_rank_for_sequence_packing(iter([padded]))
    assert (tokens.tolist(), labels.tolist()) == ([[1, 2, 0, 0]], [[2, 3, 0, 0]])
    assert (loss_mask.tolist(), position_ids.tolist()) == ([[1, 1, 0, 0]], [[5, 5, 0, 0]])
    assert mask.tolist() == [[False, False, True, True]]
    (pack,) = build_packed_microbatches([[sub_sample(0, 3, 4), sub_sample(1, 2, 2)]], "cpu")
    params = batch_in(place_of(None), iter([pack]), None, None, mtp=False, config=None, tells_gaps=True)[5]
    assert (params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist()) == ([0, 3, 5], [0, 4, 6])
    assert params.pad_between_seqs is True


def test_virtual_stages_without_tokens_get_the_metadata():
    packs = build_packed_microbatches([[sub_sample(0, 3, 4)]], "cpu")
    stages = iterators_over(packs, Channel(None), [True, False, True], in_list=True)
    first, middle, last = (next(one) for one in stages)
    assert set(middle) == {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"}
    assert {*NAMES} <= set(first) == set(last)
    first["tokens"] = None
    assert last["tokens"] is not None


def test_metadata_are_encoded_as_integers_and_have_the_dataset_ids_of_sub_samples():
    packs = build_packed_microbatches([NAMED, NAMED[1:]], "cpu", cp_sizes=[2, 1])
    for before, after in zip(packs, decode_metadata(encode_metadata(packs), "cpu"), strict=True):
        assert set(before) - set(after) == {*DTYPES}
        assert all(torch.equal(torch.as_tensor(before[name]), torch.as_tensor(after[name])) for name in after)
    first, second = build_packed_microbatches([NAMED, NAMED[1:]], "cpu")
    assert first["dataset_ids"].tolist() == [5, -1]
    assert "dataset_ids" not in second
    params = [get_batch_on_this_rank_for_sequence_packing(iter([pack]))[5] for pack in (first, second)]
    assert params[0].dataset_ids.tolist() == [5, -1]
    assert [type(one) for one in params] == [SourcedPackedSeqParams, PackedSeqParams]


@pytest.mark.parametrize(
    ("iterator", "count", "settings", "message"),
    [
        (lambda: iter([item(1)]), 3, {}, "the data iterator ended after 1 of 3 items of a global batch"),
        (lambda: None, 1, {}, "rank 0 of a tensor-parallel group has no data iterator on a stage that needs tokens"),
        (lambda: [iter([])], 1, {"virtual_pipeline_model_parallel_size": 2}, "1 data iterators given for 2 virtual"),
        (lambda: iter([item(1)]), 1, {"sequence_packing_scheduler": "best"}, "unknown scheduler 'best'\nhint: choose"),
    ],
)
def test_wrong_iterators_and_schedulers_are_refused(iterator, count, settings, message):
    with pytest.raises((ConfigError, InputError), match=message):
        wrap_data_iterator(iterator(), dataclasses.replace(CONFIG, **settings), count)


def test_a_pack_without_required_tokens_is_refused():
    with pytest.raises(ConfigError, match="no data iterator on rank 0 of a tensor-parallel group"):
        get_batch_on_this_rank_for_sequence_packing(None)
    metadata = {"cu_seqlens": torch.tensor([0, 2]), "cu_seqlens_padded": torch.tensor([0, 2]), "max_seqlen": 2}
    with pytest.raises(InputError, match="`tokens`, `labels`, `position_ids`, `loss_mask` missing in a pack"):
        get_batch_on_this_rank_for_sequence_packing(iter([metadata]))


@pytest.mark.parametrize(("vpp_size", "vp_stage"), [(2, None), (2, 2), (None, 1)])
def test_a_virtual_stage_that_does_not_exist_is_refused(vpp_size, vp_stage):
    with pytest.raises(ConfigError, match=f"stage {vp_stage} out of range: there are {vpp_size or 1} virtual stages"):
        get_batch_on_this_rank_for_sequence_packing(iter([]), vpp_size=vpp_size, vp_stage=vp_stage)


def test_missing_settings_have_defaults_and_a_cost_model_reaches_the_scheduler():
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=8, sequence_parallel=True, cp_partition_mode=None, hidden_size=7)
    assert PackingConfig.of(config) == PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_parallel=True)
    with pytest.raises(ConfigError, match="`max_seqlen_per_dp_cp_rank`: must be an integer, got None"):
        PackingConfig.of(SimpleNamespace(sequence_packing_scheduler="dp_balanced"))
    linear = PolynomialCost(linear=1.0, quadratic=0.0)
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="cost_balanced", packing_cost_model=linear
    )
    assert make_scheduler(config, cp_size=1, dp_size=2).cost_model is linear
    plain = dataclasses.replace(config, packing_cost_model=None)
    assert make_scheduler(plain, cp_size=1, dp_size=2).cost_model == PolynomialCost()
    with pytest.raises(ConfigError, match="`packing_cost_model`: must be a cost model, got 'linear'"):
        dataclasses.replace(config, packing_cost_model="linear")


@pytest.mark.parametrize(
    ("vpp", "layout", "expected"),
    [
        (None, None, [[True], [False], [True]]),
        (2, None, [[True, False], [False, False], [False, True]]),
        (2, [[["x"], ["x"]], [["x"], ["x", "mtp"]], [["x"], ["loss"]]], [[True, False], [False, True], [False, True]]),
    ],
)
def test_first_last_and_mtp_stages_need_tokens(vpp, layout, expected):
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=vpp, pipeline_model_parallel_layout=layout
    )
    assert [config.stages_with_tokens(pp_rank=rank, pp_size=3) for rank in range(3)] == expected


def test_context_parallel_groups_divide_the_ranks_and_must_be_there():
    zero = torch.zeros((1, 1), dtype=torch.int64)
    mesh = SimpleNamespace(mesh_dim_names=("dp", "cp"), mesh=zero, size=lambda _: 1)  # torch's would need groups
    assert ProcessGroups.from_mesh(mesh, cp_sizes=[1]).cp_of_size == {}
    for size in (0, 2, 3):
        with pytest.raises(ConfigError, match=f"`cp_sizes`: must be powers of two that divide 1 ranks, got {size}"):
            ProcessGroups.from_mesh(mesh, cp_sizes=[size])
    config = PackingConfig(max_seqlen_per_dp_cp_rank=4, sequence_packing_scheduler="hybrid_cost_balanced")
    place = dataclasses.replace(place_of(None), dp=SimpleNamespace(size=2, rank=0))
    with pytest.raises(ConfigError, match=r"the plan needs context-parallel groups of \[2\] ranks"):
        plan_global_batch(np.array([8]), config, place, make_scheduler(config, cp_size=1, dp_size=2))
    with pytest.raises(ConfigError, match="process groups need the attributes dp, cp, dp_cp, tp and pp"):
        place_of(object())


def test_the_first_iterator_of_the_virtual_stages_is_read():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=3)
    scheduler, place = make_scheduler(config, cp_size=1, dp_size=1), place_in(None, None, None, None)
    for stages in ([None, iter([item(1)]), None], [iter([item(1)]), None, iter([])]):
        iterators, count, total, squares = run_pipeline(scheduler, place, stages, 1, config)
        assert (len(iterators), count, total, squares) == (3, 1, 1, 1)
        assert ["tokens" in next(iterator) for iterator in iterators] == [True, False, True]


MINE = dataclasses.replace(CONFIG, sequence_packing_scheduler="mine")


class NextOnly:  # has no `__iter__`, as Megatron's `RerunDataIterator`
    def __init__(self, items):
        self._items = iter(items)

    def __next__(self):
        return next(self._items)


def wrap(monkeypatch, scheduler, *lengths):
    """Returns the tokens of each microbatch."""
    monkeypatch.setitem(scheduler_map, "mine", scheduler)
    items = [item(*range(10 * number, 10 * number + length)) for number, length in enumerate(lengths, start=1)]
    iterator, count, *_ = wrap_data_iterator(NextOnly(items), MINE, len(items))
    return [get_batch_on_this_rank_for_sequence_packing(iterator)[0][0].tolist() for _ in range(count)]


def test_a_scheduler_may_return_lists_or_override_run(monkeypatch):
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
        wrap_dataset(None, [0], MINE)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[[0]]], "sub-sample 1 of 2: must be in 1 packs, is in 0"),
        ([[[0, 1, 1]]], "sub-sample 1 of 2: must be in 1 packs, is in 2"),
        ([[[0, 1]], [[5]]], "sub-sample 5 of 2: must be in 0 packs, is in 1"),
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
    place = dataclasses.replace(place_of(None), cp=GroupRank(4, 0), cp_of_size=None)
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="default_dynamic_cp")
    for kind in (DefaultDynamicCPScheduler, HybridCostBalancedScheduler):
        scheduler = kind(8, cp_size=4, dp_size=1)
        planned = plan_global_batch(np.array([9, 7, 7, 7, 3, 3, 1, 1]), config, place, scheduler)
        assert planned.longest_part() <= 8
        assert planned.plan.cp_sizes.max() >= 2


class Sized:
    def __init__(self, lengths, real=None):
        self._lengths = np.array(lengths)
        self.real = self._lengths if real is None else real

    def __len__(self):
        return len(self._lengths)

    def lengths(self, positions):
        return self._lengths[positions]

    padded_lengths = lengths

    def __getitem__(self, position):
        return sample(position, int(self.real[position]))


def check_alike(known, exchanged):
    assert known[1:] == exchanged[1:]
    for one, other in zip(known[0], exchanged[0], strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_known_lengths_give_the_packs_of_the_iterator():
    data = Sized([3, 4, 2, 5])
    known, exchanged = wrap_dataset(data, range(4), CONFIG), wrap_data_iterator((data[i] for i in range(4)), CONFIG, 4)
    assert known[1:] == (2, 14, 54)
    check_alike(known, exchanged)
    message = r"sample at position 1: expected \(length, padded length\) \[\(2, 2\)\], found \[\(3, 3\)\]"
    with pytest.raises(DatasetFormatError, match=message):
        wrap_dataset(Sized([1, 2], real=[1, 3]), [0, 1], CONFIG)


@pytest.mark.parametrize("scheduler", ["dp_balanced", "cost_balanced"])
def test_a_blend_of_conversations_packs_by_its_index(tmp_path, scheduler):
    folders = [
        write_conversations(
            tmp_path / str(k), [conversation((PROMPT, [k, 3]), (ANSWER, [5] * row + [9])) for row in range(12)]
        )
        for k in range(2)
    ]
    blend = {"blend": (folders, [1.0, 2.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = VarlenDatasetConfig(**chat_settings(None, sequence_length=12, context_parallel_size=2, **blend))
    train, _, _ = BlendedMegatronDatasetBuilder(VarlenDataset, [20, 0, 0], lambda: True, config).build()
    positions = np.array([7, 0, 12, 3, 19, 5, 1, 2])
    samples = [train[int(position)] for position in positions]
    assert train.lengths(positions).tolist() == [int(one["original_seq_len"]) for one in samples]
    assert train.padded_lengths(positions).tolist() == [int(one["padded_seq_len"]) for one in samples]
    packing = PackingConfig(max_seqlen_per_dp_cp_rank=32, sequence_packing_scheduler=scheduler)
    known = wrap_dataset(train, positions, packing)
    exchanged = wrap_data_iterator(iter(samples), packing, len(samples))
    assert known[2] == sum(int(one["original_seq_len"]) for one in samples)
    check_alike(known, exchanged)


def test_sums_are_those_of_all_micro_batches_and_exact_where_floats_are_not():
    *_, total, squares = wrap_dataset(Sized([1, 2, 3, 4, 5, 6]), [4, 0, 5, 1], CONFIG, micro_batch_size=2)
    assert (total, squares) == (14, 66)
    assert sums_of(np.array([2**53, 1])) == (2**53 + 1, 2**106 + 1)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        *((positions, "length must be a multiple of 1 ranks") for positions in ([], [[1, 2]], 3)),
        ([0, 3], "position 3 out of range: the dataset has 3 samples"),
    ],
)
def test_positions_that_are_no_global_batch_are_refused(positions, message):
    with pytest.raises(ConfigError, match=message):
        wrap_dataset(Sized([1, 2, 3]), positions, CONFIG)


MAX = {"max_seqlen_per_dp_cp_rank": 12, "pad_packed_seq_alignment": "max"}


def take(config, *sub_samples, cp_size=1, cp_rank=0):
    (pack,) = build_packed_microbatches([sub_samples], "cpu")
    place = dataclasses.replace(place_of(None), cp=GroupRank(cp_size, cp_rank), cp_of_size={})
    return batch_in(place, iter([pack]), None, None, mtp=False, config=config)


def boundaries(params):
    assert params.cu_seqlens_q.dtype == params.cu_seqlens_q_padded.dtype == torch.int32
    assert params.cu_seqlens_q.tolist() == params.cu_seqlens_kv.tolist()
    assert params.cu_seqlens_q_padded.tolist() == params.cu_seqlens_kv_padded.tolist()
    return params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist(), params.max_seqlen_q


def test_the_tail_is_a_dummy_sequence_or_extends_the_last():
    two = (sub_sample(0, 3, 4), sub_sample(1, 2, 2))
    for policy, more, bounds in (
        (None, {}, ([0, 3, 5, 11], [0, 4, 6, 12], 6)),
        ("append_dummy_seq", {"thd_max_packed_sequences": 4}, ([0, 3, 5, 11, 11], [0, 4, 6, 12, 12], 12)),
        ("extend_last", {}, ([0, 3, 5], [0, 4, 12], 8)),
        ("extend_last", {"thd_max_packed_sequences": 3}, ([0, 3, 5, 5], [0, 4, 12, 12], 12)),
    ):
        config = PackingConfig(**MAX, thd_tail_padding_policy=policy, **more)
        tokens, labels, loss_mask, _, position_ids, params, mask = take(config, *two)
        assert boundaries(params) == bounds, policy
        assert (params.pad_between_seqs, params.total_tokens) == (True, None if more else 12)
        assert tokens.tolist() == [[1, 2, 3, 0, 100001, 100002, *[0] * 6]]
        assert mask.tolist() == [[False] * 3 + [True] + [False] * 2 + [True] * 6]
        assert not any(row[mask].any() for row in (tokens, labels, loss_mask, position_ids))
    config = PackingConfig(**MAX, thd_max_packed_sequences=4)
    assert take(config, sub_sample(0, 3, 4) | {"dataset_id": 7})[5].dataset_ids.tolist() == [7, -1, -1, -1]


def test_tokens_are_padded_to_a_multiple():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=12, pad_packed_seq_alignment=5)
    assert [take(config, sub_sample(0, n, n))[0].shape[1] for n in (4, 5, 6)] == [5, 5, 10]
    assert boundaries(take(config, sub_sample(0, 5, 5))[5]) == ([0, 5], [0, 5], 5)
    # CUDA graphs need one shape.
    graphs = SimpleNamespace(max_seqlen_per_dp_cp_rank=12, pad_packed_seq_alignment=5, cuda_graph_impl="local")
    assert take(graphs, sub_sample(0, 4, 4))[0].shape[1] == 12


def test_pieces_of_ranks_are_contiguous_or_two_chunks_of_each_sequence():
    two = (sub_sample(0, 4, 4), sub_sample(1, 4, 4))
    config = {"max_seqlen_per_dp_cp_rank": 6, "pad_packed_seq_alignment": "max"}
    for mode, expected in (
        ("zigzag", [[1, 4, 100001, 100004, 0, 0], [2, 3, 100002, 100003, 0, 0]]),
        ("contiguous", [[1, 2, 3, 4, 100001, 100002], [100003, 100004, 0, 0, 0, 0]]),
    ):
        setting = PackingConfig(**config, cp_partition_mode=mode)
        taken = [take(setting, *two, cp_size=2, cp_rank=rank) for rank in range(2)]
        assert [one[0][0].tolist() for one in taken] == expected
        assert {one[5].cp_partition_mode for one in taken} == {mode}
        assert boundaries(taken[0][5]) == boundaries(taken[1][5]) == ([0, 4, 8, 12], [0, 4, 8, 12], 4)
    plain = PackingConfig(max_seqlen_per_dp_cp_rank=6, cp_partition_mode="contiguous")
    assert take(plain, *two, cp_size=2, cp_rank=1)[0].tolist() == [[100001, 100002, 100003, 100004]]
    with pytest.raises(ConfigError, match="a pack of 3 tokens cannot be divided evenly among 2 ranks"):
        take(plain, sub_sample(0, 3, 3), cp_size=2)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6),
    cp_size=st.sampled_from([1, 2, 4]),
    policy=st.sampled_from([None, "append_dummy_seq", "extend_last"]),
    mode=st.sampled_from(["zigzag", "contiguous"]),
    alignment=st.sampled_from(["max", 2, 16]),
    most=st.sampled_from([None, 8]),
)
def test_ranks_together_have_every_token_once_and_masks_mark_padding(lengths, cp_size, policy, mode, alignment, most):
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=128,
        pad_packed_seq_alignment=alignment,
        thd_tail_padding_policy=policy,
        cp_partition_mode=mode,
        thd_max_packed_sequences=most,
    )
    multiple = 2 * cp_size
    samples = [sub_sample(i, n, -(-(n + extra) // multiple) * multiple) for i, (n, extra) in enumerate(lengths)]
    taken = [take(config, *samples, cp_size=cp_size, cp_rank=rank) for rank in range(cp_size)]
    held = [token for one in taken for token in one[0][~one[6]].tolist()]
    assert sorted(held) == sorted(token for sample in samples for token in sample["tokens"].tolist())
    shapes = {tuple(tensor.shape) for one in taken for tensor in (*one[:3], one[4], one[6])}
    assert len(shapes) == 1
    num_rows = shapes.pop()[1]
    assert num_rows == 128 if alignment == "max" else num_rows % alignment == 0
    assert all(not row[one[6]].any() for one in taken for row in (*one[:3], one[4]))
    valid, padded, _ = boundaries(taken[0][5])
    assert padded[-1] == num_rows * cp_size
    assert len(valid) == len(padded) == (len(valid) if most is None else most + 1)
    assert all(a - b <= c - d for a, b, c, d in zip(valid[1:], valid, padded[1:], padded, strict=False))


def test_schedulers_leave_room_for_the_dummy():
    config = PackingConfig(**MAX, thd_max_packed_sequences=3)
    extends = PackingConfig(**MAX, thd_max_packed_sequences=3, thd_tail_padding_policy="extend_last")
    plain = PackingConfig(max_seqlen_per_dp_cp_rank=12, thd_max_packed_sequences=3)
    assert [one.max_num_seqs for one in (config, extends, plain, PackingConfig(**MAX))] == [2, 3, 3, None]
    iterator, count, *_ = wrap_data_iterator(iter([item(1)] * 5), config, 5)
    assert count == 3
    shapes = set()
    for _ in range(count):
        batch = get_batch_on_this_rank_for_sequence_packing(iterator, config=config)
        shapes.add((batch[0].shape, batch[6].shape, batch[5].cu_seqlens_q.shape, batch[5].max_seqlen_q))
    assert shapes == {((1, 12), (1, 12), (4,), 12)}


def test_packs_that_exceed_their_shape_are_refused():
    with pytest.raises(ConfigError, match="a pack of 13 tokens exceeds the limit of 12 tokens on each of 1 ranks"):
        take(PackingConfig(**MAX), sub_sample(0, 13, 13))
    with pytest.raises(ConfigError, match="a pack has 2 sequences, more than `thd_max_packed_sequences` 1"):
        take(PackingConfig(**MAX, thd_max_packed_sequences=1), sub_sample(0, 3, 3))
    odd = PackingConfig(max_seqlen_per_dp_cp_rank=5, pad_packed_seq_alignment="max")
    with pytest.raises(ConfigError, match=r"a pack needs 6 tokens of padding, not a multiple of 2 \* cp_size = 4"):
        take(odd, sub_sample(0, 4, 4), cp_size=2)
    for settings, message in (
        ({"thd_max_packed_sequences": 1}, "`thd_max_packed_sequences`: must be 2 or more"),
        ({"thd_tail_padding_policy": "cut"}, "thd_tail_padding_policy"),
        ({"cp_partition_mode": "odd"}, "cp_partition_mode"),
        ({"pad_packed_seq_alignment": 13}, "`pad_packed_seq_alignment` 13 exceeds `max_seqlen_per_dp_cp_rank` 12"),
        ({"pad_packed_seq_alignment": "most"}, "pad_packed_seq_alignment"),
    ):
        with pytest.raises(ConfigError, match=message):
            _ = PackingConfig(**{**MAX, **settings}).max_num_seqs


def indices(cu_seqlens, cp_size, cp_rank):
    return context_parallel_indices(torch.tensor(cu_seqlens), cp_size=cp_size, cp_rank=cp_rank).tolist()


def test_ranks_have_mirrored_chunks_of_every_sequence():
    assert [indices([0, 8, 12], 2, rank) for rank in range(2)] == [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    with pytest.raises(ConfigError, match=r"sequence 1 has 12 tokens, not a multiple of 2 \* cp_size = 8"):
        indices([0, 8, 20], 4, 0)


@given(
    chunks=st.lists(st.integers(0, 9), max_size=20),
    cp_size=st.sampled_from([1, 2, 4, 8]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_it_is_the_documented_partition(chunks, cp_size, dtype):
    cu_seqlens = np.cumsum([0, *(2 * cp_size * chunk for chunk in chunks)]).tolist()
    for rank in range(cp_size):
        found = context_parallel_indices(torch.tensor(cu_seqlens, dtype=dtype), cp_size=cp_size, cp_rank=rank)
        assert found.dtype == torch.int64
        assert found.tolist() == partition(cu_seqlens, cp_size, rank)


@few_examples
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), cp_size=st.sampled_from([1, 2, 4, 8]))
def test_the_parts_together_are_the_whole_pack(lengths, cp_size):
    samples = [sample(number, length) for number, length in enumerate(lengths)]
    whole, alone = pack(samples, 2 * cp_size), pack(samples, 1)
    boundaries = torch.tensor(whole["cu_seqlens_padded"])
    real = ~np.array(whole["padding_mask"])
    for name in (*NAMES, "padding_mask"):
        row = torch.tensor(whole[name])
        together = torch.empty_like(row)
        for rank in range(cp_size):
            where = context_parallel_indices(boundaries, cp_size=cp_size, cp_rank=rank)
            assert row[where].tolist() == part_of(whole, cp_size, rank)[name]
            together[where] = row[where]
        assert together[torch.from_numpy(real)].tolist() == alone[name]


@pytest.mark.peer
def test_megatron_has_the_same_parameters_of_packed_sequences():
    peer = pytest.importorskip("megatron.core.packed_seq_params")
    ours, theirs = (
        {field.name: field.default for field in dataclasses.fields(kind)}
        for kind in (PackedSeqParams, peer.PackedSeqParams)
    )
    assert theirs.items() <= ours.items()


@pytest.mark.peer
def test_megatrons_attention_takes_them():
    """Rotary embeddings of packed sequences, the part of its attention that runs without a GPU."""
    rope = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")
    settings = ("apply_rope_fusion", "rotary_interleaved", "multi_latent_attention")
    config, alone = SimpleNamespace(**dict.fromkeys(settings, False)), SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    cu_seqlens = torch.tensor([0, 3, 8], dtype=torch.int32)
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    queries, angles = torch.randn(8, 2, 4), torch.randn(8, 1, 1, 4)
    rotated = rope.apply_rotary_pos_emb(queries, angles, config, cu_seqlens=params.cu_seqlens_q, cp_group=alone)
    first = rope.apply_rotary_pos_emb(queries[:3].unsqueeze(1), angles[:3], config, cp_group=alone)
    assert torch.equal(rotated[:3], first.squeeze(1))
