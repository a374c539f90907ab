"""`tokenloom.megatron.core.datasets.retro.utils`."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
from tests.support import CharacterTokenizer

from tokenloom.megatron.core.datasets.retro import utils


def test_texts_are_those_of_the_tokens():
    tokenizer = CharacterTokenizer()
    samples = [{"text": np.array(tokenizer.tokenize(text))} for text in ("one", "two")]
    texts = utils.GPTToTextDataset(samples, tokenizer)
    assert (len(texts), texts[1]) == (2, {"text": "two"})


def test_folders_are_made_unless_a_task_only_validates(tmp_path):
    utils.retro_makedir(SimpleNamespace(retro_task_validate=0.1), str(tmp_path / "a"))
    utils.retro_makedir(SimpleNamespace(retro_task_validate=None), str(tmp_path / "b" / "c"))
    utils.retro_makedir(SimpleNamespace(retro_task_validate=None), str(tmp_path / "b" / "c"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "c"]


def test_settings_are_those_of_the_samples():
    chunks = SimpleNamespace(sample_dataset=SimpleNamespace(config="settings"))
    config = SimpleNamespace(retro_gpt_chunk_datasets=SimpleNamespace(train={"dataset": chunks}))
    assert utils.extract_data_config(config) == "settings"


def test_messages_say_what_they_are_of(caplog):
    with caplog.at_level(logging.INFO):
        utils.log_retro_rank_0("save neighbors.")
    assert caplog.messages == ["[RETRO] save neighbors."]


def test_blocks_and_chunks_are_counted():
    blocks = utils.BlockPathMap(["q/00-10.hdf5", "q/10-15.hdf5"], 10)
    assert (blocks[12], blocks.max_idx, str(blocks)) == ("q/10-15.hdf5", 15, "2 paths")
    assert utils.get_num_chunks_per_sample(2048, 64) == 32
