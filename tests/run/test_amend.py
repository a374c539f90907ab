"""Changes of a run from a position on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.runs import RUN, lock_of
from tests.run.changed_runs import shares, start
from tests.run.data import write_source
from tests.run.small_runs import tuples

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.digest import order_digest
from tokenloom.run.timeline import Timeline


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
    with pytest.raises(ConfigError, match="position 500 is where stage 'from 500' begins"):
        amend_run(path, Amendment(position=500, weights=shares(code=1)))


def test_a_stage_of_passes_is_cut_with_its_weights(tmp_path):
    path = start(tmp_path, RUN.replace("samples = 100\n", "").replace("weights", "passes"))
    old = lock_of(path)
    lock = amend_run(path, Amendment(position=30, weights=shares(code=1))).locked.lock
    assert lock.segments[0].weights == old.segments[0].weights
    assert order_digest(lock, 30) == order_digest(old, 30)


def test_what_is_named_has_to_be_new_or_there(tmp_path):
    path = start(tmp_path)
    with pytest.raises(ConfigError, match="already has a source 'web'"):
        amend_run(path, Amendment(position=30, sources={"web": "w"}))
    with pytest.raises(ConfigError, match="did you mean `web`"):
        amend_run(path, Amendment(position=30, denied_documents=("wbe:1",)))


CHANGES = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.sampled_from(["weights", "length", "source", "grow", "deny"]),
        st.integers(0, 9),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=5,
)


@given(CHANGES)
def test_no_row_of_changes_moves_what_lies_before_them(changes):
    with TemporaryDirectory() as folder:
        path = start(Path(folder), RUN.replace("samples = 100", "samples = 400"))
        position = 0
        for number, (distance, kind, one, other) in enumerate(changes):
            position += distance
            old = lock_of(path)
            amendment = Amendment(position=position, weights=shares(web=one, code=other))
            if kind == "length":
                amendment = Amendment(position=position, sequence_length=8 + 8 * (number % 2))
            elif kind == "source":
                data = write_source(f"{folder}/more{number}", *[20] * 30)
                weights = shares(code=1, **{f"more{number}": other})
                amendment = Amendment(position=position, sources={f"more{number}": data}, weights=weights)
            elif kind == "grow":
                write_source(f"{folder}/data/web_more{number}", *[10 * other] * 10)
                amendment = Amendment(position=position, grows=True)
            elif kind == "deny":
                Path(f"{folder}/deny{number}").write_text(f"web:{one}\ncode:{other}\n")
                amendment = Amendment(position=position, denied=f"{folder}/deny{number}")
            new = amend_run(path, amendment).locked.lock
            assert order_digest(new, position) == order_digest(old, position)
            before, after = (Timeline(lock).locate(np.arange(position)) for lock in (old, new))
            assert tuples(*before[1:]) == tuples(*after[1:])
