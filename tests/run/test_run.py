"""A run that is opened: its two files, and what does not fit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.run.folders import STAGE, make_run, texts, write_toml

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.run.run import Run


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
    with pytest.raises(ConfigError, match=r"run\.toml` was changed since it was locked.*\n.*tokenloom run lock"):
        Run.open(path)


def test_there_is_no_run(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"expected a run at .*nothing\.toml"):
        Run.open(tmp_path / "nothing.toml")


def test_a_lock_edited_by_hand(tmp_path):
    make_run(tmp_path)
    lock = tmp_path / "run.lock"
    lock.write_text(lock.read_text().replace('"seed": 1234', '"seed": 1235'))
    with pytest.raises(ConfigError, match=r"run\.lock"):
        Run.open(tmp_path / "run.toml")


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
