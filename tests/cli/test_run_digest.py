"""`tokenloom run digest`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def test_digest_is_of_a_position_or_step(path, capsys):
    status, out, _ = run(capsys, "run", "digest", path, "--position", 30)
    assert status == 0
    digest, _, rest = out.partition("  ")
    assert len(digest) == 64
    assert rest == f"{path} before position 30\n"
    by_step = run(capsys, "run", "digest", path, "--at-step", 3, "--global-batch-size", 10, "--json")[1]
    assert json.loads(by_step)["digest"] == digest
    assert json.loads(run(capsys, "run", "digest", path, "--json")[1])["position"] == 100


def test_steps_follow_a_schedule_in_tokens(path, capsys):
    words = ("--at-step", 4, "--batch-size-schedule", "0:4 160:8", "--json")
    assert json.loads(run(capsys, "run", "digest", path, *words)[1])["position"] == 4 * 3 + 8


def test_a_position_beyond_the_end_is_refused(path, capsys):
    status, _, err = run(capsys, "run", "digest", path, "--position", 101)
    assert status == 1
    assert "expected a position in [0, 100], found 101" in err
