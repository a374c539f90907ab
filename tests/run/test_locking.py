"""Locking again: what is consumed stays, whatever is edited, or nothing is written."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from tests.run.folders import HEAD, SOURCES, STAGE, make_run, texts, write_pair, write_toml

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run

CUT = STAGE.replace("600", "200")
NEXT = '[[stages]]\nname = "next"\nsamples = 400\nweights = { web = 1, code = 4 }\n'


def test_a_new_stage_from_a_consumed_position_on(tmp_path):
    before = make_run(tmp_path)
    expected, digest = texts(before.dataset(), range(200)), before.digest(200)
    path = write_toml(tmp_path, CUT + NEXT.replace("400", "2000"))
    result = lock_run(path, consumed=200)
    assert result.moved.position >= 200
    after = Run.open(path)
    assert texts(after.dataset(), range(200)) == expected
    assert after.digest(200) == digest
    dataset = after.dataset()
    first = after.timeline.walk_of(0, 0).num_windows
    windows = [p.window for k in range(2200) if (p := dataset.place(k)).source == "web" and p.walk == 0]
    assert sorted(windows) == list(range(first))  # none twice, none left out


def test_an_edit_of_the_past_is_refused_and_nothing_written(tmp_path):
    make_run(tmp_path)
    locked = (tmp_path / "run.lock").read_bytes()
    path = write_toml(tmp_path, STAGE.replace("web = 3", "web = 2"))
    with pytest.raises(ConfigError, match=r"position 0 is before position 300 and must not change"):
        lock_run(path, consumed=300)
    with pytest.raises(ConfigError, match=r"position \d+ may already be consumed: .*\n.*--consumed-samples"):
        lock_run(path)
    assert (tmp_path / "run.lock").read_bytes() == locked
    assert lock_run(path, consumed=0).moved is not None


def test_a_seed_may_change_before_training(tmp_path):
    make_run(tmp_path)
    path = write_toml(tmp_path, STAGE, head=HEAD.replace("1234", "5"))
    assert lock_run(path, consumed=0).moved.position == 0
    assert Run.open(path).lock.seed == 5


def test_a_source_that_grows(tmp_path):
    before = make_run(tmp_path)
    expected = texts(before.dataset(), range(300))
    write_pair(tmp_path / "web-00", 90, first=10**6, seed=9)  # sorts between the others
    path = tmp_path / "run.toml"
    lock_run(path, consumed=300)
    after = Run.open(path)
    assert texts(after.dataset(), range(300)) == expected
    dataset = after.dataset()
    new = [k for k in range(600) if max(dataset.sample(k)["tokens"]) >= 10**6]
    assert new
    assert min(new) >= 300
    assert [pair.prefix.rpartition("/")[2] for pair in after.lock.sources[0].pairs] == ["web-0", "web-1", "web-00"]
    with pytest.raises(ConfigError):
        before.dataset().run_order.position_of_state(dataset.run_order.order_state(500))


def test_a_source_that_is_added(tmp_path):
    before = make_run(tmp_path)
    expected = texts(before.dataset(), range(200))
    write_pair(tmp_path / "books", 80, first=10**6, seed=5)
    sources = SOURCES + 'books = "books"\n'
    stage = NEXT.replace("code = 4", "code = 4, books = 2")
    lock_run(write_toml(tmp_path, CUT + stage, sources=sources), consumed=200)
    dataset = Run.open(tmp_path / "run.toml").dataset()
    assert texts(dataset, range(200)) == expected
    assert np.bincount(dataset.batch(range(200, 600))["dataset_id"]).tolist() == [57, 229, 114]


def test_one_without_a_lock_is_locked(tmp_path):
    run = make_run(tmp_path)
    locked = (tmp_path / "run.lock").read_bytes()
    again = Run.open(tmp_path / "run.toml")
    assert (again.identity, again.num_samples) == (run.identity, 600)
    assert (tmp_path / "run.lock").read_bytes() == locked
    assert [again.digest(k) for k in (0, 300)] == [run.digest(k) for k in (0, 300)]
    assert re.fullmatch("[0-9a-f]{64}", run.digest(600))


def test_comments_and_layout_change_nothing(tmp_path):
    run = make_run(tmp_path)
    path = write_toml(tmp_path, "# a comment\n" + STAGE.replace("3, code = 1", "6, code = 2"))
    assert texts(Run.open(path).dataset(), [1, 2]) == texts(run.dataset(), [1, 2])


def test_a_changed_run_must_be_locked_again(tmp_path):
    make_run(tmp_path)
    path = write_toml(tmp_path, STAGE.replace("600", "700"))
    with pytest.raises(ConfigError, match=r"run\.toml` changed after it was locked.*\n.*tokenloom run lock"):
        Run.open(path)


def test_there_is_no_run(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*nothing\.toml`"):
        Run.open(tmp_path / "nothing.toml")


def test_a_run_may_be_moved_with_its_data(tmp_path):
    (tmp_path / "a").mkdir()
    run = make_run(tmp_path / "a")
    expected = texts(run.dataset(), range(20))
    (tmp_path / "a").rename(tmp_path / "b")
    assert texts(Run.open(tmp_path / "b" / "run.toml").dataset(), range(20)) == expected


def test_a_start_imports_nothing_that_only_locking_needs(tmp_path):
    make_run(tmp_path)
    code = (
        "import sys; from tokenloom import Run\n"
        f"Run.open({str(tmp_path / 'run.toml')!r}).dataset().batch(range(4))\n"
        "print([name for name in ('locking', 'megatron', 'resolve', 'plan') if f'tokenloom.run.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
