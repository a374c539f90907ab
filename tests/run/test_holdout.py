"""What is held out is read once, and never in training."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.folders import STAGE, make_run

from tokenloom.errors import ConfigError

HELD = '[sources]\nweb = { data = "web-*", holdout = "20%" }\ncode = { data = "code", holdout = "10%" }\n'


def tokens_of(dataset):
    return {token for k in range(len(dataset)) for token in dataset.sample(k)["tokens"].tolist()}


def test_training_never_reads_it(tmp_path):
    run = make_run(tmp_path, STAGE.replace("600", "2000"), sources=HELD)
    held = run.holdout()
    assert np.unique(held.batch(range(len(held)))["dataset_id"]).tolist() == [0, 1]
    validation, training = tokens_of(held), tokens_of(run.dataset())
    assert not validation & training
    total = sum(pair.num_tokens for source in run.lock.sources for pair in source.pairs)
    kept = sum(pair.held_tokens for source in run.lock.sources for pair in source.pairs)
    assert len(validation) == len(held) * 16
    assert kept - len(validation) < 2 * 17
    assert 0.1 < kept / total < 0.25


def test_of_one_source_and_at_another_length(tmp_path):
    run = make_run(tmp_path, sources=HELD)
    held = run.holdout("code", sequence_length=8)
    batch = held.batch(range(len(held)))
    assert batch["tokens"].shape[1] == 8
    assert np.unique(batch["dataset_id"]).tolist() == [1]


def test_none_is_held_out(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(ConfigError, match="expected sources that hold out a sample of 16 tokens or more"):
        run.holdout()
    with pytest.raises(ConfigError, match="expected sources of the run, found 'wbe'"):
        run.holdout("wbe")
