"""`tokenloom run diff`."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.cli.runs import RUN, run, write_run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    shutil.copy(tmp_path / "run.lock", tmp_path / "before.lock")
    return path


def test_a_run_and_its_own_lock_are_the_same(path, capsys):
    status, out, err = run(capsys, "run", "diff", path, path.with_name("before.lock"))
    assert (status, err) == (0, "")
    assert "all positions are the same" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_an_amended_run_differs_from_its_older_lock(path, capsys):
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, out, _ = run(capsys, "run", "diff", path.with_name("before.lock"), path)
    assert status == 1
    assert "the first 6" in out
    assert "stages: 100 samples of 16 tokens from 0 on" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    status, out, _ = run(capsys, "run", "diff", path.with_name("before.lock"), path, "--until-position", 60, "--json")
    told = json.loads(out)
    assert (status, told["position"], told["stop"]) == (0, None, 60)
    assert told["sources"][0]["common_tokens"] == told["sources"][0]["tokens_before"] == 45 * 16


def test_another_seed(path, capsys):
    other = path.with_name("other.toml")
    other.write_text(RUN.replace("seed = 7", "seed = 8"))
    status, out, _ = run(capsys, "run", "diff", path, other)
    assert status == 1
    assert "seed: 7 → 8" in out
    assert "position 0 is\n  A: stage main, source" in out


def test_wrong_usage_and_what_is_not_there(path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, "run", "diff", path)
    assert stopped.value.code == 2
    assert run(capsys, "run", "diff", path, path.with_name("none.lock"))[0] == 1
    status, _, err = run(capsys, "run", "diff", path, path, "--until-position", 101)
    assert status == 1
    assert "expected a position up to 100" in err
