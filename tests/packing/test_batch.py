"""Packs and batches in one process."""

from __future__ import annotations

import dataclasses

import pytest
from tests.packing.items import CONFIG, item, sub_sample
from tests.reference.packing import NAMES, pack, sample

from tokenloom.errors import ConfigError, InputError
from tokenloom.packing.batch import (
    DTYPES,
    PackedSeqParams,
    SourcedPackedSeqParams,
    batch_in,
    build_packed_microbatches,
    decode_metadata,
    encode_metadata,
    get_batch_on_this_rank_for_sequence_packing,
    padding_mask_of,
)
from tokenloom.packing.groups import Channel, place_of
from tokenloom.packing.pipeline import iterators_over
from tokenloom.packing.schedulers import wrap_data_iterator

torch = pytest.importorskip("torch")


def test_a_pack_is_its_concatenated_sub_samples():
    samples = [sub_sample(0, 3, 4), sub_sample(1, 4, 4)]
    (found,) = build_packed_microbatches([samples], "cpu")
    expected = pack([sample(0, 3), sample(1, 4)], 4)
    assert all(found[name].tolist() == expected[name] for name in NAMES)
    assert (found["cu_seqlens"].tolist(), found["cu_seqlens_padded"].tolist()) == ([0, 3, 7], [0, 4, 8])
    assert (found["cu_seqlens"].dtype, int(found["max_seqlen"])) == (torch.int32, 4)
    assert "local_cp_size" not in found


def test_the_padding_mask_follows_from_the_boundaries():
    mask = padding_mask_of(torch.tensor([0, 3, 3, 5]), torch.tensor([0, 4, 6, 8]))
    assert mask.tolist() == [False, False, False, True, True, True, False, False]
    with pytest.raises(InputError, match="do not fit boundaries"):
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


def test_padding_is_zero():
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


def test_attention_parameters_with_padding_between_sequences():
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


def test_metadata_are_encoded_as_integers():
    named = [sub_sample(0, 3, 4) | {"dataset_id": 5}, sub_sample(1, 2, 2)]
    packs = build_packed_microbatches([named, named[1:]], "cpu", cp_sizes=[2, 1])
    for before, after in zip(packs, decode_metadata(encode_metadata(packs), "cpu"), strict=True):
        assert set(before) - set(after) == {*DTYPES}
        assert all(torch.equal(torch.as_tensor(before[name]), torch.as_tensor(after[name])) for name in after)


def test_packs_have_the_dataset_ids_of_their_sub_samples():
    named = [sub_sample(0, 3, 4) | {"dataset_id": 5}, sub_sample(1, 2, 2)]
    first, second = build_packed_microbatches([named, named[1:]], "cpu")
    assert first["dataset_ids"].tolist() == [5, -1]
    assert "dataset_ids" not in second
    params = [get_batch_on_this_rank_for_sequence_packing(iter([pack]))[5] for pack in (first, second)]
    assert params[0].dataset_ids.tolist() == [5, -1]
    assert [type(one) for one in params] == [SourcedPackedSeqParams, PackedSeqParams]


@pytest.mark.parametrize(
    ("iterator", "count", "settings", "message"),
    [
        (lambda: iter([item(1)]), 3, {}, "the data iterator ended after 1 of 3 items of a global batch"),
        (lambda: None, 1, {}, "on rank 0 of a tensor-parallel group on a stage with tokens"),
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
    with pytest.raises(ConfigError, match=f"stage {vp_stage} out of range: there are {vpp_size or 1} stages"):
        get_batch_on_this_rank_for_sequence_packing(iter([]), vpp_size=vpp_size, vp_stage=vp_stage)
