"""Packs of one shape: literal packs in both tail policies, rules of all packs, and errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.items import item, sub_sample

from tokenloom import ConfigError
from tokenloom.packing.batch import batch_in, build_packed_microbatches, get_batch_on_this_rank_for_sequence_packing
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import GroupRank, place_of
from tokenloom.packing.schedulers import wrap_data_iterator

torch = pytest.importorskip("torch")

MAX = {"max_seqlen_per_dp_cp_rank": 12, "pad_packed_seq_alignment": "max"}


def take(config, *sub_samples, cp_size=1, cp_rank=0):
    (pack,) = build_packed_microbatches([sub_samples], "cpu")
    place = place_of(None)
    standing = GroupRank(cp_size, cp_rank)
    place = type(place)(place.dp, standing, place.tp, place.pp, None, {})
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


def test_tokens_are_padded_to_a_multiple():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=12, pad_packed_seq_alignment=5)
    assert [take(config, sub_sample(0, n, n))[0].shape[1] for n in (4, 5, 6)] == [5, 5, 10]
    assert boundaries(take(config, sub_sample(0, 5, 5))[5]) == ([0, 5], [0, 5], 5)
    # CUDA graphs need one shape.
    graphs = SimpleNamespace(max_seqlen_per_dp_cp_rank=12, pad_packed_seq_alignment=5, cuda_graph_impl="local")
    assert take(graphs, sub_sample(0, 4, 4))[0].shape[1] == 12


def test_padding_has_dataset_id_minus_1():
    config = PackingConfig(**MAX, thd_max_packed_sequences=4)
    assert take(config, sub_sample(0, 3, 4) | {"dataset_id": 7})[5].dataset_ids.tolist() == [7, -1, -1, -1]


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
    with pytest.raises(ConfigError, match="a pack of 3 tokens cannot be divided among 2 ranks"):
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
    with pytest.raises(ConfigError, match="a pack of 13 tokens exceeds the 12 tokens on each of 1 ranks"):
        take(PackingConfig(**MAX), sub_sample(0, 13, 13))
    with pytest.raises(ConfigError, match="a pack has 2 sequences, more than `thd_max_packed_sequences` 1"):
        take(PackingConfig(**MAX, thd_max_packed_sequences=1), sub_sample(0, 3, 3))
    odd = PackingConfig(max_seqlen_per_dp_cp_rank=5, pad_packed_seq_alignment="max")
    with pytest.raises(ConfigError, match=r"6 tokens of padding are not a multiple of 2 \* cp_size = 4"):
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
