"""The samples of batches by source."""

from __future__ import annotations

import numpy as np
from tests.run.folders import make_run
from tests.support import StandInTokenizer

from tokenloom.kernels import WINDOW_BITS
from tokenloom.run.groups import SourceGroups
from tokenloom.run.members import Reading, run_config


def test_each_sample_is_given_by_its_source(tmp_path):
    run = make_run(tmp_path)
    configs = {16: run_config(run.lock, 16, StandInTokenizer(), Reading())}
    groups = SourceGroups(run.timeline, configs, Reading(), data=run.lock, identity="test")
    positions = np.array([5, 599, 0, 5, 77, 300])
    found = run.timeline.locate(positions)
    rows = {}
    for group in groups.of(positions):
        at = np.arange(6)[group.rows]
        rows |= dict(zip(at.tolist(), [group.source] * len(at), strict=True))
        assert (group.numbers >> WINDOW_BITS).tolist() == found.walks[at].tolist()
        assert set(found.walks[at].tolist()) <= group.member.walks
    assert [rows[row] for row in range(6)] == found.sources.tolist()
    assert groups.num_open_pairs == 0


def test_a_batch_of_one_source_is_one_group(tmp_path):
    run = make_run(tmp_path)
    configs = {16: run_config(run.lock, 16, StandInTokenizer(), Reading())}
    groups = SourceGroups(run.timeline, configs, Reading(), data=run.lock, identity="test")
    everything = np.arange(600)
    of_code = everything[run.timeline.locate(everything).sources == 1]
    [group] = groups.of(of_code)
    assert group.rows == slice(None)
    assert len(group.numbers) == len(of_code)
    assert groups.of(np.empty(0, dtype=np.int64)) == []
