"""`tokenloom.megatron.core.datasets.retro.query.gpt_chunk_dataset`."""

from __future__ import annotations

import numpy as np
import torch

from tokenloom.megatron.core.datasets.retro.query.gpt_chunk_dataset import GPTChunkDataset


def test_torch_takes_parts_of_chunks():
    samples = [{"text": np.arange(9) + 10 * i, "document_ids": np.array([i])} for i in range(3)]
    part = torch.utils.data.Subset(GPTChunkDataset(samples, sample_length=8, chunk_length=4), range(1, 4))
    assert [chunk["text"].tolist() for chunk in part] == [[4, 5, 6, 7], [10, 11, 12, 13], [14, 15, 16, 17]]
    assert [chunk["doc_ids"].tolist() for chunk in part] == [[0], [1], [1]]
