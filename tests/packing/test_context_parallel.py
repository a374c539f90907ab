"""Context-parallel parts of packs: literal cases, the documented partition, and the union of all parts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.packing import NAMES, pack, part_of, partition, sample
from tests.support import few_examples

from tokenloom.errors import ConfigError
from tokenloom.packing.batch import PackedSeqParams, context_parallel_indices

torch = pytest.importorskip("torch")


def indices(cu_seqlens, cp_size, cp_rank):
    return context_parallel_indices(torch.tensor(cu_seqlens), cp_size=cp_size, cp_rank=cp_rank).tolist()


def test_ranks_have_mirrored_chunks_of_every_sequence():
    cu_seqlens = [0, 8, 12]
    assert indices(cu_seqlens, 2, 0) == [0, 1, 6, 7, 8, 11]
    assert indices(cu_seqlens, 2, 1) == [2, 3, 4, 5, 9, 10]


def test_a_length_that_cannot_be_divided_is_refused():
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
    config = type(
        "Config", (), {"apply_rope_fusion": False, "rotary_interleaved": False, "multi_latent_attention": False}
    )
    cu_seqlens = torch.tensor([0, 3, 8], dtype=torch.int32)
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    queries, angles = torch.randn(8, 2, 4), torch.randn(8, 1, 1, 4)
    rotated = rope.apply_rotary_pos_emb(queries, angles, config, cu_seqlens=params.cu_seqlens_q, cp_group=_Alone())
    first = rope.apply_rotary_pos_emb(queries[:3].unsqueeze(1), angles[:3], config, cp_group=_Alone())
    assert torch.equal(rotated[:3], first.squeeze(1))


class _Alone:
    """A process group of one."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0
