"""`tokenloom_retro.megatron`: samples as texts, and samples with neighbors."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from retro_projects import CHUNK_LENGTH, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer, write_corpus

from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom_retro.megatron import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig, get_retro_datasets
from tokenloom_retro.megatron.query import RetroDataset, get_neighbor_dir

DOCUMENTS = [[1, 2, 3, 4, EOD], [5, 6, 7, EOD], [8, 10, EOD]]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def settings(blend, **changes):
    given = {
        "random_seed": 3,
        "sequence_length": 3,
        "blend": blend,
        "split": "1,0,0",
        "split_preprocessing": "1,0,0",
        "return_document_ids": True,
        "tokenizer": StandInTokenizer(),
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
    }
    return MultiSplitGPTDatasetConfig(**(given | changes))


def build(prefix, kind=MultiSplitGPTDataset, **changes):
    config = settings(([prefix], None), **changes)
    return BlendedMegatronDatasetBuilder(kind, [6, 0, 0], lambda: True, config).build()[0]


def test_a_custom_query_is_called(prefix):
    class Marked(MultiSplitGPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents, *_ = super()._query_document_sample_shuffle_indices(idx)
            return text + 100, documents

    marked, plain = build(prefix, Marked), build(prefix)
    assert marked[1]["text"].tolist() == (plain[1]["text"] + 100).tolist()
    assert build(prefix, Marked, return_document_ids=False)[1]["text"].tolist() == marked[1]["text"].tolist()


def test_hooks_of_the_reference_are_called(prefix):
    class Counted(MultiSplitGPTDataset):
        def _get_num_epochs(self, num_tokens_per_epoch):
            asked.append(num_tokens_per_epoch)
            return super()._get_num_epochs(num_tokens_per_epoch)

    asked = []
    assert len(build(prefix, Counted).document_index) == 2 * len(DOCUMENTS)
    assert set(asked) == {12}


@pytest.mark.parametrize("name", ["return_document_ids", "tokenizer"])
def test_a_missing_setting_is_an_assertion_error(prefix, name):
    with pytest.raises(AssertionError, match=name):
        settings(([prefix], None), **{name: None})


def test_a_program_written_for_the_reference_runs(tmp_path):
    documents = [[number, 2, 3, 4, 5, 6, EOD] for number in range(10, 40)]
    project = write_project(tmp_path / "project", {"corpus": documents, "more": documents})
    blend = [os.path.join(project, "data", prefix) for prefix in ("corpus", "more")], [2.0, 1.0]
    config = settings(blend, sequence_length=2 * CHUNK_LENGTH, return_document_ids=False)
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
    lengths = {"sample_length": 2 * CHUNK_LENGTH, "eod_token_id": EOD}
    dataset, *others = get_retro_datasets(config=retro, gpt_datasets=samples, **lengths)
    assert isinstance(dataset, RetroDataset)
    assert others == [None, None]
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=5)))
    assert list(batch) == ["dataset_id", "text", "neighbor_chunks", "neighbor_tokens"]
    assert batch["neighbor_chunks"][1].tolist() == [[[6, 7], [7, -1]], [[9, -1], [10, 11]]]
    assert batch["neighbor_tokens"].shape == (5, 2, 2, 2 * CHUNK_LENGTH)
