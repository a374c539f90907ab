"""Recorded settings of a project made by Megatron."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.errors import TokenizerError
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import recorded_settings, tokenizer_of_project

pytestmark = pytest.mark.slow

REFERENCE = {
    "retro_gpt_seed": 1234,
    "retro_gpt_data_path": ["0.5", "books", "0.5", "web"],
    "retro_gpt_split": "98,2,0",
    "retro_gpt_seq_length": 2048,
    "retro_gpt_chunk_length": 64,
    "retro_gpt_train_samples": 1000,
    "retro_gpt_eval_interval": 25,
    "retro_gpt_eval_iters": 3,
    "retro_gpt_global_batch_size": 10,
    "retro_block_size": 100000,
    "retro_index_str": "OPQ32_64,IVF65536_HNSW8,PQ32",
    "retro_index_ntrain": 66625331,
    "retro_neighbor_dirs": {"train": "train_0", "valid": "valid_1", "test": None},
    "retro_bert_vocab_file": "vocab.txt",
}


def test_projects_of_the_reference(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(REFERENCE))
    found = recorded_settings(RetroProject(tmp_path))
    assert found.build.sizes == (1000, 5 * 30, 30)  # evaluations before the first of 100 steps and after each 25
    assert found.build.data == ((0.5, "books"), (0.5, "web"))
    assert (found.tokenizer, found.embedder) == (None, None)
    with pytest.raises(TokenizerError, match=r"`.*config.json` has no tokenizer"):
        tokenizer_of_project(RetroProject(tmp_path), found)
