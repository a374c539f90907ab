"""`tokenloom.megatron.core.datasets.data_schedule_utils`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.megatron.core.datasets.packed_samples import sample

from tokenloom.errors import InputError
from tokenloom.megatron.core.datasets import data_schedule_utils as utils


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
        assert {name: value.tolist() for name, value in pack.items()} == {
            "tokens": [3, 1, 2, 0, 0],
            "labels": [4, 2, 3, 0, 0],
            "loss_mask": [1, 1, 1, 0, 0],
            "position_ids": [0] * 5,
            "cu_seqlens_padded": [0, 1, 5],
            "max_seqlen": 4,
            "cu_seqlens": [0, 1, 3],
        }
        assert {pack[name].dtype for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")} == {torch.int32}
    assert utils.broadcast_to_pp_group(packs, 1, 5.0, 17.0, None, "cpu") == (packs, 1, 5.0, 17.0)
    assert utils.broadcast_scalars([1, 5.0], None, "cpu") == [1, 5.0]
    one, two = (SimpleNamespace(virtual_pipeline_model_parallel_size=count) for count in (None, 2))
    iterators = [
        utils.create_data_iterator(packs, None, None, one),
        *utils.create_data_iterator(packs, None, None, two),
    ]
    assert all("tokens" in next(iterator) for iterator in iterators)


def test_partitioned_indices():
    assert utils.get_thd_partitioned_indices(torch.tensor([0, 4, 8]), 8, 2, 1).dtype == torch.int32
    with pytest.raises(AssertionError, match="`cu_seqlens`: must end at 7 tokens, got 8"):
        utils.get_thd_partitioned_indices(torch.tensor([0, 4, 8]), 7, 2, 1)


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
    with pytest.raises(InputError, match="has 2 tokens and 1 elements of `labels`"):
        utils.reroute_samples_to_dcp_ranks(batch, ids, pairs, [[[0]]], offsets, None, None)
    with pytest.raises(StopIteration):
        utils.get_batch_and_global_seqlens(iter([]), 1, None)
