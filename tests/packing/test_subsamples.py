"""Sub-samples of items, and as bytes."""

from __future__ import annotations

import pytest
from tests.packing.items import item, sub_sample
from tests.reference.packing import NAMES

from tokenloom.errors import InputError
from tokenloom.packing.batch import from_bytes, num_bytes, take_apart, to_bytes

torch = pytest.importorskip("torch")


def test_an_item_is_one_sub_sample_without_its_padding():
    (found,) = take_apart([item(1, 2, 0, 0, original_seq_len=torch.tensor([2]), padded_seq_len=torch.tensor([4]))])
    assert found["tokens"].tolist() == [1, 2]
    assert found["labels"].tolist() == [2, 3]
    assert (found["original_seq_len"], found["padded_seq_len"]) == (2, 4)


def test_lists_rows_and_other_dtypes_are_accepted():
    rows = {name: value[None].to(torch.int32) for name, value in item(1, 2).items()}
    first, second = take_apart([[rows, {name: value.numpy() for name, value in item(3).items()}]])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert (first["tokens"].dtype, first["loss_mask"].dtype) == (torch.int64, torch.float32)


def test_a_pack_is_split_at_its_boundaries():
    packed = item(
        1, 2, 0, 3, 0, 0,
        cu_seqlens=torch.tensor([[0, 3, 6, 6]]), cu_seqlens_original=torch.tensor([[0, 2, 3, 3]]),
    )  # fmt: skip
    first, second = take_apart([packed])
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([1, 2], [3])
    assert [(one["original_seq_len"], one["padded_seq_len"]) for one in (first, second)] == [(2, 3), (1, 3)]


def test_sub_samples_keep_the_number_of_their_dataset():
    packed = item(1, 2, 0, 3, 0, 0, cu_seqlens=torch.tensor([0, 3, 6, 6]))
    found = take_apart([item(1, dataset_id=torch.tensor([2])), item(1), packed | {"dataset_id": 1}])
    assert [one.get("dataset_id") for one in found] == [2, None, 1, 1]
    found = take_apart([packed | {"dataset_id": torch.tensor([[3, 4]])}])
    assert [one["dataset_id"] for one in found] == [3, 4]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tokens": torch.zeros(2)}, "`labels`, `position_ids`, `loss_mask` missing in item 0 of the data iterator"),
        (
            item(1, 2) | {"labels": torch.zeros(3)},
            "item 0 of the data iterator has 2 tokens and 3 elements of `labels`",
        ),
        (item(1, 2, original_seq_len=3), r"has 2 tokens, which do not fit a sub-sample of 3 tokens"),
        (item(1, 2, original_seq_len=2, padded_seq_len=1), r"which do not fit a sub-sample of 2 tokens \(padded: 1\)"),
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


def test_bytes_keep_every_value_of_every_length(rng):
    lengths = rng.integers(0, 6, size=7).tolist()
    samples = [sub_sample(number, length, length) for number, length in enumerate(lengths)]
    data = to_bytes(samples)
    assert (len(data), len(data) % 8) == (num_bytes(lengths), 0)
    for before, after in zip(samples, from_bytes(data, lengths), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in NAMES)
