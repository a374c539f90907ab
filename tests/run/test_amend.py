"""Changes of a run from a position on."""

from __future__ import annotations

import pytest
from tests.cli.runs import RUN, lock_of
from tests.run.changed_runs import shares, start

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.digest import order_digest


def test_the_new_stage_takes_what_is_left(tmp_path):
    path = start(tmp_path)
    amended = amend_run(path, Amendment(position=30, weights=shares(code=1)))
    segments = amended.locked.lock.segments
    assert [(each.start, each.num_samples) for each in segments] == [(0, 30), (30, 70)]
    again = amend_run(path, Amendment(position=50, sequence_length=8))
    assert [(each.start, each.num_samples) for each in again.locked.lock.segments] == [(0, 30), (30, 20), (50, 100)]
    assert lock_of(path) == again.locked.lock


def test_stages_that_follow_stay(tmp_path):
    path = start(tmp_path, RUN + '\n[[stages]]\nname = "last"\nweights = { web = 1 }\n')
    lock = amend_run(path, Amendment(position=30, weights=shares(code=1))).locked.lock
    assert [(each.stage, each.start, each.num_samples) for each in lock.segments] == [
        ("main", 0, 30),
        ("from 30", 30, 70),
        ("last", 100, None),
    ]
    lock = amend_run(path, Amendment(position=500, weights=shares(code=1))).locked.lock
    assert [each.start for each in lock.segments] == [0, 30, 100, 500]
    with pytest.raises(ConfigError, match="position 500 is the first of stage 'from 500'"):
        amend_run(path, Amendment(position=500, weights=shares(code=1)))


def test_a_stage_of_passes_is_cut_with_its_weights(tmp_path):
    path = start(tmp_path, RUN.replace("samples = 100\n", "").replace("weights", "passes"))
    old = lock_of(path)
    lock = amend_run(path, Amendment(position=30, weights=shares(code=1))).locked.lock
    assert lock.segments[0].weights == old.segments[0].weights
    assert order_digest(lock, 30) == order_digest(old, 30)


def test_what_is_named_has_to_be_new_or_there(tmp_path):
    path = start(tmp_path)
    with pytest.raises(ConfigError, match="has a source 'web' already"):
        amend_run(path, Amendment(position=30, sources={"web": "w"}))
    with pytest.raises(ConfigError, match="did you mean `web`"):
        amend_run(path, Amendment(position=30, denied_documents=("wbe:1",)))
