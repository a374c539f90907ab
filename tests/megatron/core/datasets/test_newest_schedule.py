"""What the reference's newest scheduler does, where that version is followed; older versions go on as they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tests.megatron.core.datasets.packed_samples import sample  # noqa: E402  needs torch

from tokenloom.megatron.core.datasets import data_schedule  # noqa: E402
from tokenloom.megatron.core.datasets import data_schedule_utils as utils  # noqa: E402
from tokenloom.packing.groups import ProcessGroups  # noqa: E402

ALONE = ProcessGroups()


@pytest.fixture(params=[(0, 16, 1), (0, 19, 2)], ids=["0.16.1", "0.19.2"])
def released(request, monkeypatch):
    monkeypatch.setattr(utils, "reference_version", lambda: request.param)


@pytest.fixture
def newest(monkeypatch):
    monkeypatch.setattr(utils, "reference_version", lambda: (0, 20))
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)  # its classes are of another version


def packed(*rows, without_loss=()):
    """Returns a packed sample of rows of tokens, some of which have no loss."""
    tokens = torch.tensor([token for row in rows for token in row])
    loss = [0.0 if number in without_loss else 1.0 for number, row in enumerate(rows) for _ in row]
    bounds = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()], dtype=torch.int32)
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.tensor(loss),
        "position_ids": tokens * 0,
        "cu_seqlens": bounds,
    }


def config(**more):
    return SimpleNamespace(
        **{
            "max_seqlen_per_dp_cp_rank": 8,
            "microbatch_group_size_per_vp_stage": 1,
            "virtual_pipeline_model_parallel_size": None,
            "sequence_packing_scheduler": "dp_balanced",
            **more,
        }
    )


def wrapped_tokens(items, settings=None):
    """Returns the tokens of each pack that a global batch becomes."""
    iterator, count, total, _ = data_schedule.wrap_data_iterator(iter(items), settings or config(), len(items), ALONE)
    return [next(iterator)["tokens"].tolist() for _ in range(count)], total


PROMPT_ONLY = [[1, 2, 3], [4, 5], [6]]


def test_sub_samples_without_loss_are_left_out(newest):
    batch, pairs, *_ = utils.get_batch_and_global_seqlens(iter([packed(*PROMPT_ONLY, without_loss=[1])]), 1, None)
    assert [one["tokens"].tolist() for one in batch] == [[1, 2, 3], [6]]
    assert pairs == [(0, 3), (1, 1)]
    assert wrapped_tokens([packed(*PROMPT_ONLY, without_loss=[1, 2])]) == ([[1, 2, 3]], 3.0)
    assert wrapped_tokens([packed([7, 8], without_loss=[0]), packed([9])]) == ([[9]], 1.0)


def test_samples_that_come_one_by_one_are_kept(newest):
    silent = sample(1, 2, loss_mask=torch.zeros(2))
    assert len(utils.get_batch_and_global_seqlens(iter([silent, sample(3)]), 2, None)[0]) == 2
    assert wrapped_tokens([silent, sample(3)]) == ([[1, 2, 3]], 3.0)


def test_released_versions_keep_all(released):
    batch, *_ = utils.get_batch_and_global_seqlens(iter([packed(*PROMPT_ONLY, without_loss=[1])]), 1, None)
    assert len(batch) == 3
    assert wrapped_tokens([packed(*PROMPT_ONLY, without_loss=[1])]) == ([[1, 2, 3, 4, 5, 6]], 6.0)


def test_a_batch_without_targets_is_refused(newest):
    items = [packed([1, 2], [3], without_loss=[0, 1])]
    for run in (
        lambda: utils.get_batch_and_global_seqlens(iter(items), 1, None),
        lambda: wrapped_tokens(items),
        lambda: wrapped_tokens(items, config(sequence_packing_scheduler="default_dynamic_cp")),
    ):
        with pytest.raises(ValueError, match="packed global batch contains no sequences with supervised targets"):
            run()


@pytest.mark.parametrize(
    "items",
    [
        [packed([1, 2]), sample(3)],
        [sample(3), packed([1, 2])],
        [packed([1, 2]) | {"padded_seq_len": torch.tensor([2])}],
    ],
)
def test_all_samples_are_of_one_kind(newest, items):
    with pytest.raises(AssertionError, match="expected either `padded_seq_len` in all samples or `cu_seqlens` in all"):
        wrapped_tokens(items)
    with pytest.raises(AssertionError, match="expected either `padded_seq_len` in all samples or `cu_seqlens` in all"):
        utils.get_batch_and_global_seqlens(iter([items]), 1, None)


@pytest.mark.parametrize(
    ("settings", "tp_size", "expected"),
    [
        ({}, 4, (2, False)),
        ({"sequence_parallel": True}, 4, (8, False)),
        ({"fp8": "hybrid", "fp8_recipe": "delayed"}, 4, (2, False)),
        ({"fp8": "hybrid", "fp8_recipe": "mxfp8"}, 4, (32, True)),
        ({"fp8": "hybrid", "fp8_recipe": "mxfp8", "sequence_parallel": True}, 4, (128, True)),
        ({"fp8": None, "fp8_recipe": "mxfp8"}, 1, (2, False)),
        ({"pad_packed_seq_alignment": 6}, 1, (6, True)),
        ({"pad_packed_seq_alignment": 3, "sequence_parallel": True}, 2, (12, True)),
        ({"pad_packed_seq_alignment": 24, "fp8": "e4m3", "fp8_recipe": "mxfp8"}, 1, (96, True)),
        ({"pad_packed_seq_alignment": "max"}, 1, (2, True)),
    ],
)
def test_alignment_of_packs(settings, tp_size, expected):
    assert data_schedule.get_packed_sequence_alignment(SimpleNamespace(**settings), tp_size) == expected


def test_an_alignment_that_is_not_positive_is_refused():
    for wrong in (0, -4):
        with pytest.raises(ValueError, match="pad_packed_seq_alignment"):
            data_schedule.get_packed_sequence_alignment(SimpleNamespace(pad_packed_seq_alignment=wrong), 1)


def whole_pack():
    """Returns a pack of a sequence of 3 tokens in 4 places, and one of 2 in 2."""
    return {
        "tokens": torch.tensor([1, 2, 3, 0, 4, 5]),
        "loss_mask": torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]),
        "padding_mask": torch.tensor([False, False, False, True, False, False]),
        "labels": None,
        "cu_seqlens": torch.tensor([0, 3, 5], dtype=torch.int32),
        "cu_seqlens_padded": torch.tensor([0, 4, 6], dtype=torch.int32),
        "max_seqlen": torch.tensor(4, dtype=torch.int32),
    }


def test_capacity_is_a_multiple_of_the_alignment(newest):
    items = [sample(1, 2, 3), sample(4, 5, 6), sample(7)]
    assert wrapped_tokens(items)[0] == [[1, 2, 3, 4, 5, 6, 7]]
    aligned = config(pad_packed_seq_alignment=6)  # 6 of 8 tokens
    assert wrapped_tokens(items, aligned)[0] == [[1, 2, 3, 4, 5, 6], [7]]
    with pytest.raises(ValueError, match="expected max_seqlen_per_dp_cp_rank of at least the alignment 32, found 8"):
        wrapped_tokens(items, config(fp8="hybrid", fp8_recipe="mxfp8"))


def test_released_versions_keep_their_capacity(released):
    items = [sample(1, 2, 3), sample(4, 5, 6), sample(7)]
    assert wrapped_tokens(items, config(pad_packed_seq_alignment=6))[0] == [[1, 2, 3, 4, 5, 6, 7]]


def test_batches_are_filled_up_and_say_so(newest):
    settings = config(pad_packed_seq_alignment=6)
    packs, count, *_ = data_schedule.wrap_data_iterator(
        iter([sample(1, 2, 3, padded=4), sample(5)]), settings, 2, ALONE
    )
    assert count == 1
    batch = data_schedule.get_batch_on_this_rank_for_sequence_packing(packs, pg_collection=ALONE, config=settings)
    tokens, _, loss_mask, _, _, params, mask = batch
    assert tokens.tolist() == [[1, 2, 3, 0, 5, 0]]
    assert loss_mask.tolist() == [[1.0, 1.0, 1.0, 0.0, 1.0, 0.0]]
    assert mask.tolist() == [[False, False, False, True, False, True]]
    assert (params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist()) == ([0, 3, 4, 5], [0, 4, 5, 6])
    assert (params.total_tokens, params.pad_between_seqs, params.max_seqlen_q) == (6, True, 4)
    packs, *_ = data_schedule.wrap_data_iterator(iter([sample(1, 2)]), config(), 1, ALONE)
    params = data_schedule.get_batch_on_this_rank_for_sequence_packing(packs, pg_collection=ALONE)[5]
    assert (params.total_tokens, params.pad_between_seqs) == (2, False)


def test_views_of_several_layouts_are_refused():
    with pytest.raises(ValueError, match="expected return_context_parallel_batch to be False"):
        data_schedule.get_batch_on_this_rank_for_sequence_packing(
            iter([]), pg_collection=ALONE, return_context_parallel_batch=True
        )


def test_packs_of_dynamic_groups_say_their_ranks(newest):
    settings = config(sequence_packing_scheduler="default_dynamic_cp")
    packs, *_ = data_schedule.wrap_data_iterator(iter([sample(1, 2)]), settings, 1, ALONE)
    batch = data_schedule.get_batch_on_this_rank_for_sequence_packing(
        packs, dynamic_cp=True, pg_collection=ALONE, config=settings
    )
    assert batch[0].tolist() == [[1, 2]]
    assert (batch[5].local_cp_size, batch[5].total_tokens) == (1, 2)


def test_virtual_stages_get_what_they_need():
    pack = whole_pack() | {"local_cp_size": torch.tensor(1)}
    stages = config(virtual_pipeline_model_parallel_size=3)
    group = SimpleNamespace(rank=lambda: 0)
    by_place = utils.create_data_iterator([pack], group, stages, [False, True, False], True)
    by_name = utils.create_data_iterator([pack], group, stages, vpp_needs_data=[False, True, False], is_dynamic_cp=True)
    for iterators in (by_place, by_name):
        packs = [next(iterator) for iterator in iterators]
        assert ["tokens" in one for one in packs] == [False, True, False]
        assert packs[0] is not packs[2]
        assert all("local_cp_size" in one for one in packs)
    assert ["tokens" in next(one) for one in utils.create_data_iterator([pack], group, stages)] == [False] * 3
    assert "tokens" in next(utils.create_data_iterator([pack], group, config()))
    other = SimpleNamespace(rank=lambda: 1)
    assert utils.create_data_iterator(None, other, stages) == [None] * 3
    assert utils.create_data_iterator(None, other, config()) is None
    assert ["tokens" in next(one) for one in utils.create_data_iterator([pack], None, None, stages)] == [
        True,
        False,
        True,
    ]


def test_ranks_without_sub_samples_take_part_in_the_exchange(newest):
    nothing = (torch.tensor([], dtype=torch.int32), [], [], torch.tensor([0, 0]))
    assert utils.reroute_samples_to_dcp_ranks([], *nothing, None, None) == {}
    assert utils.reroute_samples_to_dcp_ranks([], *nothing, None, None, ["tokens"]) == {}
    where = (torch.tensor([0]), [(0, 2)], [[[0]]], torch.tensor([0, 1]))
    for options in ({"sample_keys": {"tokens"}}, {}):
        found = utils.reroute_samples_to_dcp_ranks([sample(1, 2)], *where, None, None, **options)[0]
        assert (found["tokens"].tolist(), found["original_seq_len"]) == ([1, 2], 2)


def test_only_tensors_of_text_travel():
    where = (torch.tensor([0]), [(0, 2)], [[[0]]], torch.tensor([0, 1]))
    with pytest.raises(AssertionError, match=r"supports only the text sample schema.*unsupported .* \['image'\]"):
        utils.reroute_samples_to_dcp_ranks([sample(1, 2, image=torch.ones(2))], *where, None, None)


def test_schedulers_have_the_groups_of_the_version(monkeypatch):
    plans = {}
    for version in ((0, 16, 1), (0, 20)):
        monkeypatch.setattr(utils, "reference_version", lambda: version)  # noqa: B023  called at once
        scheduler = data_schedule.DefaultDynamicCPScheduler(8, cp_size=2, dp_size=3, min_cp_size=2)
        plans[version] = scheduler.get_groups_and_subsamples([(0, 17), (1, 8)])
    assert plans == {(0, 16, 1): [[[0], [0], [0], [0], [1], [1]]], (0, 20): [[[0, 1]] * 6]}
    with pytest.raises(ValueError, match=r"min_cp_size=4.*expected one of"):
        data_schedule.DefaultDynamicCPScheduler(8, 2, 3, None, min_cp_size=4)
