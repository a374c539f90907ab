"""`tokenloom ledger`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import RUN, run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, RUN)
    run(capsys, "run", "lock", path)
    return path


def test_rows_sums_and_balance(path, capsys):
    status, out, err = run(capsys, "ledger", path)
    assert (status, err) == (0, "")
    ledger = Run.open(path).ledger()
    assert f"\nstage main, positions 0 to {ledger.position}\n" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["source", "samples", "in", "with", "loss", "without", "never", "left"] in rows
    assert "\n  web: first token of a pass or text " in out
    assert ["tokens", "offered", f"{ledger.total.offered:,}"] in rows
    assert ["tokens", "with", "loss", f"{ledger.total.counts.with_loss:,}"] in rows
    assert out.endswith("\nbalance 0\n")
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_steps_positions_and_json(path, capsys):
    words = ("--until-step", 3, "--global-batch-size", 10)
    told = json.loads(run(capsys, "ledger", path, *words, "--json")[1])
    assert (told["position"], told["balance"], told["total"]["samples"]) == (30, 0, 30)
    assert [stage["stage"] for stage in told["stages"]] == ["main"]
    assert {source["source"] for source in told["sources"]} == {"web", "code"}
    assert told == json.loads(run(capsys, "ledger", path, "--until-position", 30, "--no-reading", "--json")[1])
