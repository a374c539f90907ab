"""Sub-samples as varlen datasets give them, in numbers that can be read."""

from __future__ import annotations

import torch


def sample(*tokens, padded=None, **more):
    size = len(tokens) if padded is None else padded
    row = torch.nn.functional.pad(torch.tensor(tokens), (0, size - len(tokens)), value=99)
    lengths = {"original_seq_len": torch.tensor([len(tokens)]), "padded_seq_len": torch.tensor([size])}
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(size), "position_ids": row * 0, **lengths, **more}
