"""`tokenloom run id`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def test_the_name_of_a_run(path, capsys):
    status, out, _ = run(capsys, "run", "id", path)
    identity = Run.open(path).identity
    assert (status, out) == (0, f"{identity}  {path}\n")
    assert run(capsys, "run", "id", path.with_name("run.lock"))[1].startswith(identity)
    told = json.loads(run(capsys, "run", "id", path, "--json")[1])
    assert told == {"path": str(path), "run": identity, "position": None, "digest": None, "num_samples": 100}
    assert f"id={identity[:16]}" in repr(Run.open(path))
    for words in (("plan",), ("check",)):
        assert f"run {identity}\n" in run(capsys, "run", *words, path)[1]
        assert json.loads(run(capsys, "run", *words, path, "--json")[1])["run"] == identity


def test_it_stays_while_the_run_changes_and_the_order_is_told_too(path, capsys):
    before = json.loads(run(capsys, "run", "id", path, "--position", 60, "--json")[1])
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, out, _ = run(capsys, "run", "id", path)
    assert status == 0
    assert out.splitlines()[0].startswith(before["run"])
    assert out.splitlines()[1] == f"{before['digest']}  order before position 60"
