"""`tokenloom run diff`."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.cli.runs import run, write_run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    shutil.copy(tmp_path / "run.lock", tmp_path / "before.lock")
    return path


def test_an_amended_run_differs_from_its_older_lock(path, capsys):
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, out, _ = run(capsys, "run", "diff", path.with_name("before.lock"), path)
    assert status == 1
    assert "the first 6" in out
    assert "100 samples of 16 tokens from 0 on: web: 3, code: 1" in out
    status, out, _ = run(capsys, "run", "diff", path.with_name("before.lock"), path, "--until-position", 60, "--json")
    told = json.loads(out)
    assert (status, told["position"], told["stop"]) == (0, None, 60)
    assert told["sources"][0]["common_tokens"] == told["sources"][0]["tokens_before"] == 45 * 16
