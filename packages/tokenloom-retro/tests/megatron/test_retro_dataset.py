"""`tokenloom_retro.megatron`: samples with neighbors."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from retro_projects import CHUNK_LENGTH, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer

from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom_retro.megatron import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig, get_retro_datasets
from tokenloom_retro.megatron.query import RetroDataset, get_neighbor_dir


def test_a_program_of_the_reference_gets_its_batches(tmp_path):
    documents = [[number, 2, 3, 4, 5, 6, EOD] for number in range(10, 40)]
    project = write_project(tmp_path / "project", {"corpus": documents, "more": documents})
    config = MultiSplitGPTDatasetConfig(
        random_seed=3,
        sequence_length=2 * CHUNK_LENGTH,
        blend=([os.path.join(project, "data", prefix) for prefix in ("corpus", "more")], [2.0, 1.0]),
        split="1,0,0",
        split_preprocessing="1,0,0",
        return_document_ids=False,
        tokenizer=StandInTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    train, valid, test = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, [10, 0, 0], lambda: True, config).build()
    folder = get_neighbor_dir(project, "train", train)
    write_neighbors(Path(folder), np.arange(60).reshape(20, 3), block_size=7)
    retro = SimpleNamespace(
        retro_project_dir=project,
        retro_chunk_length=CHUNK_LENGTH,
        retro_block_size=7,
        retro_neighbor_dirs={"train": os.path.basename(folder)},
        retro_num_neighbors=2,
        retro_num_retrieved_chunks=2,
        retro_verify_neighbor_count=True,
    )
    samples = {"train": (train, 10), "valid": (valid, 0), "test": (test, 0)}
    dataset, *others = get_retro_datasets(
        config=retro, gpt_datasets=samples, sample_length=2 * CHUNK_LENGTH, eod_token_id=EOD
    )
    assert isinstance(dataset, RetroDataset)
    assert others == [None, None]
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=5)))
    assert list(batch) == ["dataset_id", "text", "neighbor_chunks", "neighbor_tokens"]
    assert batch["neighbor_chunks"][1].tolist() == [[[6, 7], [7, -1]], [[9, -1], [10, 11]]]
    assert batch["neighbor_tokens"].shape == (5, 2, 2, 2 * CHUNK_LENGTH)
