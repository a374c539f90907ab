"""Items of data iterators and sub-samples with readable numbers."""

from __future__ import annotations

import pytest
from tests.reference.packing import sample

from tokenloom.packing.config import PackingConfig

torch = pytest.importorskip("torch")


def item(*tokens, **more):
    row = torch.tensor(tokens)
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(len(row)), "position_ids": row * 0 + 5, **more}


def sub_sample(number, length, padded):
    tensors = {name: torch.from_numpy(value) for name, value in sample(number, length).items()}
    return {**tensors, "original_seq_len": length, "padded_seq_len": padded}


CONFIG = PackingConfig(max_seqlen_per_dp_cp_rank=8)
