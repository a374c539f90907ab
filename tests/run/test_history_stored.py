"""Histories of runs in the reference's order, against their samples."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.megatrons import LENGTHS, make, opened


def test_samples_are_those_of_the_stored_order(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenloom.run.history_stored._ROWS_AT_ONCE", 7)
    run = opened(make(tmp_path))
    dataset = run.dataset()
    read = np.array([int(dataset.sample(position)["dataset_id"]) for position in range(300)])
    history = run.history([0, 1, 50, 300])
    for row, point in enumerate(history.positions.tolist()):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=2).tolist()
    assert history.passes[-1, 0] == pytest.approx(history.samples[-1, 0] * 16 / sum(LENGTHS["web"]))


def test_a_run_of_one_pair_reads_nothing_else(tmp_path):
    stage = "sequence_length = 16\nsamples = 90\nweights = { web = 1 }\n"
    history = opened(make(tmp_path, stage=stage)).history([0, 45, 90])
    assert history.samples.tolist() == [[0, 0], [45, 0], [90, 0]]


def test_a_source_of_several_pairs_is_one(tmp_path):
    sources = 'web = ["web", "news"]\ncode = "code"\n'
    run = opened(make(tmp_path, sources=sources))
    assert run.history([300]).samples.sum() == 300
    assert len(run.history([300]).sources) == 2
