"""Packs and batches in one process, in numbers that can be read."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, settings, write_conversations
from tests.reference.packing import NAMES, pack, sample

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.errors import ConfigError, DatasetFormatError, InputError
from tokenloom.packing.batch import (
    build_packed_microbatches,
    get_batch_on_this_rank_for_sequence_packing,
    padding_mask_of,
)
from tokenloom.packing.config import PackingConfig, stages_with_tokens
from tokenloom.packing.exchange import (
    broadcast_scalars,
    broadcast_to_pp_group,
    create_data_iterator,
    get_batch_and_global_seqlens,
    reroute_samples_to_dcp_ranks,
    wrap_data_iterator,
)
from tokenloom.packing.groups import place_of
from tokenloom.packing.known_lengths import wrap_dataset
from tokenloom.packing.planning import plan_global_batch, sums_of
from tokenloom.packing.subsamples import from_bytes, num_bytes, take_apart, to_bytes

torch = pytest.importorskip("torch")

CONFIG = PackingConfig(max_seqlen_per_dp_cp_rank=8)


def item(*tokens, **more):
    row = torch.tensor(tokens)
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(len(row)), "position_ids": row * 0 + 5, **more}


def sub_sample(number, length, padded):
    tensors = {name: torch.from_numpy(value) for name, value in sample(number, length).items()}
    return {**tensors, "original_seq_len": length, "padded_seq_len": padded}


class Sized:
    """Samples of given lengths."""

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


# --- sub-samples ------------------------------------------------------------------------------------------------------


def test_an_item_is_one_sub_sample_without_its_padding():
    (found,) = take_apart([item(1, 2, 0, 0, original_seq_len=torch.tensor([2]), padded_seq_len=torch.tensor([4]))])
    assert found["tokens"].tolist() == [1, 2]
    assert found["labels"].tolist() == [2, 3]
    assert (found["original_seq_len"], found["padded_seq_len"]) == (2, 4)


def test_an_item_without_lengths_has_no_padding():
    (found,) = take_apart([item(1, 2, 3)])
    assert (found["original_seq_len"], found["padded_seq_len"]) == (3, 3)


def test_lists_rows_and_other_dtypes_are_taken():
    rows = {name: value[None].to(torch.int32) for name, value in item(1, 2).items()}
    first, second = take_apart([[rows, {name: value.numpy() for name, value in item(3).items()}]])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert (first["tokens"].dtype, first["loss_mask"].dtype) == (torch.int64, torch.float32)


def test_a_pack_is_taken_apart_by_its_boundaries():
    packed = item(
        1, 2, 0, 3, 0, 0,
        cu_seqlens=torch.tensor([[0, 3, 6, 6]]), cu_seqlens_original=torch.tensor([[0, 2, 3, 3]]),
    )  # fmt: skip
    first, second = take_apart([packed])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert [(one["original_seq_len"], one["padded_seq_len"]) for one in (first, second)] == [(2, 3), (1, 3)]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tokens": torch.zeros(2)}, "`labels`, `position_ids`, `loss_mask` missing in item 0 of the data iterator"),
        (item(1, 2) | {"labels": torch.zeros(3)}, "expected `labels` as long as the 2 tokens, found 3 elements"),
        (item(1, 2, original_seq_len=3), "found 2 tokens, original length 3 and padded length 3 in item 0"),
        (item(1, 2, original_seq_len=2, padded_seq_len=1), "original length 2 and padded length 1"),
        (item(1, 2) | {"tokens": torch.zeros(2, 2)}, "expected one row, found shape \\[2, 2\\] for `tokens`"),
        (7, "expected a mapping of tensors, or a list of such, found int as item 0"),
    ],
)
def test_what_is_no_sub_sample_is_named(wrong, text):
    with pytest.raises(InputError, match=text):
        list(take_apart([wrong]))


def test_bytes_keep_every_value_of_every_length(rng):
    lengths = rng.integers(0, 6, size=7).tolist()
    samples = [sub_sample(number, length, length) for number, length in enumerate(lengths)]
    data = to_bytes(samples)
    assert (len(data), len(data) % 8) == (num_bytes(lengths), 0)
    for before, after in zip(samples, from_bytes(data, lengths), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in NAMES)


def test_no_sub_samples_are_no_bytes():
    assert (len(to_bytes([])), num_bytes([]), from_bytes(to_bytes([]), [])) == (0, 0, [])


# --- packs ------------------------------------------------------------------------------------------------------------


def test_a_pack_is_its_sub_samples_in_a_row():
    samples = [sub_sample(0, 3, 4), sub_sample(1, 4, 4)]
    (found,) = build_packed_microbatches([samples], "cpu")
    expected = pack([sample(0, 3), sample(1, 4)], 4)
    assert all(found[name].tolist() == expected[name] for name in NAMES)
    assert (found["cu_seqlens"].tolist(), found["cu_seqlens_padded"].tolist()) == ([0, 3, 7], [0, 4, 8])
    assert (found["cu_seqlens"].dtype, int(found["max_seqlen"])) == (torch.int32, 4)
    assert "local_cp_size" not in found


def test_an_empty_pack_is_refused():
    with pytest.raises(ConfigError, match="found none in microbatch 1"):
        build_packed_microbatches([[sub_sample(0, 1, 1)], []], "cpu")


def test_more_tokens_than_32_bits_count_are_refused():
    huge = sub_sample(0, 1, 2**31)
    with pytest.raises(ConfigError, match="expected at most 2147483647 tokens in a pack, found 2147483648"):
        build_packed_microbatches([[huge]], "cpu")


def test_padding_is_where_boundaries_differ():
    mask = padding_mask_of(torch.tensor([0, 3, 3, 5]), torch.tensor([0, 4, 6, 8]))
    assert mask.tolist() == [False, False, False, True, True, True, False, False]


def test_boundaries_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="do not hold sequences bounded by"):
        padding_mask_of(torch.tensor([0, 5]), torch.tensor([0, 4]))


# --- one process ------------------------------------------------------------------------------------------------------


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


def test_padded_slots_are_neutral_whatever_they_held():
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


def test_sums_are_exact_where_floats_are_not():
    assert sums_of(np.array([2**53, 1])) == (2**53 + 1, 2**106 + 1)


def test_utilities_of_one_process_change_nothing():
    fetched = get_batch_and_global_seqlens(iter([item(1, 2), item(3, original_seq_len=1, padded_seq_len=4)]), 2, None)
    batch, pairs, ids, offsets, padded, originals = fetched
    assert (pairs, ids.tolist(), offsets.tolist()) == ([(0, 2), (1, 4)], [0, 1], [0, 2])
    assert (padded.tolist(), originals.tolist()) == ([2, 4], [2, 1])
    samples = reroute_samples_to_dcp_ranks(batch, ids, pairs, [[[1]], [[0]]], offsets, None, None)
    assert {number: one["tokens"].tolist() for number, one in samples.items()} == {0: [1, 2], 1: [3]}
    packs = build_packed_microbatches([[samples[1]], [samples[0]]], "cpu")
    assert broadcast_to_pp_group(packs, 2, 3, 5, None, "cpu") == (packs, 2, 3, 5)
    assert broadcast_scalars([2**63, 7], None, "cpu") == [2**63, 7]
    iterator = create_data_iterator(packs, None, CONFIG, [True])
    assert [one["tokens"].tolist() for one in iterator] == [[3, 0, 0, 0], [1, 2]]


def test_virtual_stages_without_tokens_get_the_metadata():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=3)
    packs = build_packed_microbatches([[sub_sample(0, 3, 4)]], "cpu")
    first, middle, last = (next(one) for one in create_data_iterator(packs, None, config, [True, False, True]))
    assert set(middle) == {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"}
    assert {*NAMES} <= set(first) == set(last)
    first["tokens"] = None
    assert last["tokens"] is not None


def test_known_lengths_give_the_packs_of_the_iterator():
    data = Sized([3, 4, 2, 5])
    known, exchanged = wrap_dataset(data, range(4), CONFIG), wrap_data_iterator((data[i] for i in range(4)), CONFIG, 4)
    assert known[1:] == exchanged[1:] == (2, 14, 54)
    for one, other in zip(known[0], exchanged[0], strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("scheduler", ["dp_balanced", "cost_balanced"])
def test_a_blend_of_conversations_packs_by_its_index(tmp_path, scheduler):
    folders = [
        write_conversations(
            tmp_path / str(k), [conversation((PROMPT, [k, 3]), (ANSWER, [5] * row + [9])) for row in range(12)]
        )
        for k in range(2)
    ]
    blend = {"blend": (folders, [1.0, 2.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = VarlenDatasetConfig(**settings(None, sequence_length=12, context_parallel_size=2, **blend))
    train, _, _ = BlendedMegatronDatasetBuilder(VarlenDataset, [20, 0, 0], lambda: True, config).build()
    positions = np.array([7, 0, 12, 3, 19, 5, 1, 2])
    samples = [train[int(position)] for position in positions]
    assert train.lengths(positions).tolist() == [int(one["original_seq_len"]) for one in samples]
    assert train.padded_lengths(positions).tolist() == [int(one["padded_seq_len"]) for one in samples]
    packing = PackingConfig(max_seqlen_per_dp_cp_rank=32, sequence_packing_scheduler=scheduler)
    known = wrap_dataset(train, positions, packing)
    exchanged = wrap_data_iterator(iter(samples), packing, len(samples))
    assert known[1:] == exchanged[1:]
    assert known[2] == sum(int(one["original_seq_len"]) for one in samples)
    for one, other in zip(known[0], exchanged[0], strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_micro_batches_of_several_samples_are_read_in_a_row():
    data = Sized([1, 2, 3, 4, 5, 6])
    *_, total, squares = wrap_dataset(data, [4, 0, 5, 1], CONFIG, micro_batch_size=2)
    assert (total, squares) == (14, 66)


# --- wrong input ------------------------------------------------------------------------------------------------------


def test_an_iterator_that_ends_early_says_where():
    with pytest.raises(InputError, match="expected 3 items in a global batch, but the data iterator ended after 1"):
        wrap_data_iterator(iter([item(1)]), CONFIG, 3)


def test_a_missing_iterator_is_named():
    with pytest.raises(ConfigError, match="on rank 0 of a tensor-parallel group on a stage with tokens, found None"):
        wrap_data_iterator(None, CONFIG, 1)
    with pytest.raises(ConfigError, match="on rank 0 of a tensor-parallel group, found None"):
        get_batch_on_this_rank_for_sequence_packing(None)


def test_a_pack_without_tokens_is_refused_where_they_are_needed():
    metadata = {"cu_seqlens": torch.tensor([0, 2]), "cu_seqlens_padded": torch.tensor([0, 2]), "max_seqlen": 2}
    with pytest.raises(InputError, match="`tokens`, `labels`, `position_ids`, `loss_mask` missing in a pack"):
        get_batch_on_this_rank_for_sequence_packing(iter([metadata]))


@pytest.mark.parametrize(("vpp_size", "vp_stage"), [(2, None), (2, 2), (None, 1)])
def test_a_virtual_stage_that_does_not_exist_is_refused(vpp_size, vp_stage):
    with pytest.raises(ConfigError, match=f"expected a virtual pipeline stage below {vpp_size or 1}, found {vp_stage}"):
        get_batch_on_this_rank_for_sequence_packing(iter([]), vpp_size=vpp_size, vp_stage=vp_stage)


def test_a_list_of_iterators_has_one_per_virtual_stage():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=2)
    with pytest.raises(ConfigError, match="expected a list of 2 data iterators, one per virtual stage, found 1"):
        wrap_data_iterator([iter([])], config, 1)


def test_an_unknown_scheduler_is_named():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="best")
    with pytest.raises(ConfigError, match="expected a scheduler among cost_balanced, dp_bal"):
        wrap_data_iterator(iter([item(1)]), config, 1)


@pytest.mark.parametrize("positions", [[], [[1, 2]], 3])
def test_positions_that_are_no_global_batch_are_refused(positions):
    with pytest.raises(ConfigError, match="expected positions in whole micro-batches of 1 on 1 data-parallel ranks"):
        wrap_dataset(Sized([1, 2, 3]), positions, CONFIG)


def test_positions_beyond_the_dataset_are_refused():
    with pytest.raises(ConfigError, match="expected positions below 3, found 3"):
        wrap_dataset(Sized([1, 2, 3]), [0, 3], CONFIG)


def test_a_dataset_is_held_to_its_lengths():
    with pytest.raises(DatasetFormatError, match="expected 2 tokens, padded to 2, in the sample at position 1"):
        wrap_dataset(Sized([1, 2], real=[1, 3]), [0, 1], CONFIG)


def test_settings_are_positive():
    with pytest.raises(ConfigError, match="expected max_seqlen_per_dp_cp_rank of at least 1, found 0"):
        PackingConfig(max_seqlen_per_dp_cp_rank=0)


def test_groups_must_have_all_attributes():
    with pytest.raises(ConfigError, match="expected process groups with the attributes dp, cp, dp_cp, tp and pp"):
        place_of(object())


def test_a_group_that_a_plan_needs_must_be_there():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=4, sequence_packing_scheduler="hybrid_cost_balanced")
    place = dataclasses.replace(place_of(None), dp=SimpleNamespace(size=2, rank=0))
    with pytest.raises(ConfigError, match=r"expected process groups of \[2\] context-parallel ranks for this plan"):
        plan_global_batch(np.array([8]), config, place)


# --- stages -----------------------------------------------------------------------------------------------------------


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
    assert [stages_with_tokens(config, pp_rank=rank, pp_size=3) for rank in range(3)] == expected
