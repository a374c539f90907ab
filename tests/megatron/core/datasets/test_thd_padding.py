"""`tokenloom.megatron.core.datasets.thd_padding`."""

from __future__ import annotations

import pytest

from tokenloom.packing.context_parallel import PackedSeqParams

torch = pytest.importorskip("torch")

from tokenloom.megatron.core.datasets import data_schedule  # noqa: E402  needs torch


def params(valid, padded, **more):
    one, other = (torch.tensor(row, dtype=torch.int32) for row in (valid, padded))
    longest = int(other.diff().max())
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=one, cu_seqlens_kv=one, cu_seqlens_q_padded=other, cu_seqlens_kv_padded=other,
        max_seqlen_q=longest, max_seqlen_kv=longest, **more,
    )  # fmt: skip


def described(made):
    rows = [made.cu_seqlens_q, made.cu_seqlens_kv, made.cu_seqlens_q_padded, made.cu_seqlens_kv_padded]
    assert (made.max_seqlen_q, rows[0].tolist(), rows[2].tolist()) == (
        made.max_seqlen_kv, rows[1].tolist(), rows[3].tolist()
    )  # fmt: skip
    return rows[0].tolist(), rows[2].tolist(), made.max_seqlen_q, made.total_tokens, made.pad_between_seqs


@pytest.mark.parametrize(
    ("bounds", "settings", "expected"),
    [
        (([0, 3], [0, 3]), {"target_len": 5}, ([0, 3, 5], [0, 3, 5], 3, 5, False)),
        (([0, 2], [0, 3]), {"target_len": 5}, ([0, 2, 4], [0, 3, 5], 3, 5, True)),
        (([0, 3], [0, 3]), {"alignment": 3}, ([0, 3], [0, 3], 3, 3, None)),
        (([0, 3], [0, 3]), {"alignment": 2, "max_num_seqs": 3}, ([0, 3, 4, 4], [0, 3, 4, 4], 4, None, True)),
        (([0, 3], [0, 3]), {"target_len": 5, "policy": "extend_last"}, ([0, 3], [0, 5], 5, 5, True)),
        (([0, 4], [0, 4]), {"target_len": 4, "cp_size": 2}, ([0, 4, 8], [0, 4, 8], 4, 4, False)),
    ],
)
def test_packs_get_their_tail(bounds, settings, expected):
    policy = settings.pop("policy", "append_dummy_seq")
    here = bounds[1][-1] // settings.get("cp_size", 1)
    tokens = torch.arange(1, here + 1).view(1, -1)
    found = data_schedule.pad_sequence_for_thd(
        tokens, None, tokens.float(), None, params(*bounds), tail_padding_policy=policy, **settings
    )
    assert described(found[4]) == expected
    size = settings.get("target_len") or -(-here // settings["alignment"]) * settings["alignment"]
    assert found[0].tolist() == [[*range(1, here + 1), *[0] * (size - here)]]
    assert (found[1], found[3], found[2].dtype) == (None, None, torch.float32)
    assert found[5].tolist() == [[False] * here + [True] * (size - here)]


def test_packs_that_cannot_have_it_are_refused():
    one = params([0, 4], [0, 4])
    for settings, message in (
        ({}, "expected either an alignment or a target_len, found None and None"),
        ({"target_len": 3}, "expected at most 3 tokens for each of 1 ranks in a pack, found 4"),
        ({"alignment": 3, "max_num_seqs": 1}, "expected at most 1 sequences in a pack, found 2"),
        ({"target_len": 3, "cp_size": 2, "tail_padding_policy": "extend_last"}, "expected a whole pack"),
    ):
        with pytest.raises(AssertionError, match=message):
            data_schedule.pad_sequence_for_thd(None, None, None, None, one, **settings)
    with pytest.raises(AssertionError, match="neither"):
        data_schedule.pad_sequence_for_thd(None, None, None, None, PackedSeqParams(), alignment=1)


def test_what_settings_ask_for():
    assert data_schedule.get_thd_padding_kwargs("max", 8, 3, cuda_graph_static=False) == (None, 8, 3)
    assert data_schedule.get_thd_padding_kwargs(4, 8, 3, cuda_graph_static=False) == (4, None, 3)
    assert data_schedule.get_thd_padding_kwargs(4, 8, 3, cuda_graph_static=True) == (None, 8, 3)
    assert data_schedule.resolve_thd_tail_padding_policy(None) == "append_dummy_seq"
    bounds = torch.tensor([0, 4, 12], dtype=torch.int32)
    extend = data_schedule.extend_thd_padding_before_cp_slice
    longer, longest, total = extend(bounds, 8, alignment=4, target_len=None, cp_size=2, cp_partition_mode="zigzag")
    assert (longer.tolist(), longest, total, bounds.tolist()) == ([0, 4, 16], 12, 16, [0, 4, 12])
