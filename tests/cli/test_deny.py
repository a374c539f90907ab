"""`tokenloom deny`: what is denied, what that changes, and what is asked wrongly."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tests.cli.runs import RUN, run, write_run
from tests.run.recorded import write_lines_origins

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    """A run whose source `code` knows its input; lines 1 and 52 of it gave nothing."""
    path = write_run(tmp_path, RUN.replace("samples = 100", "samples = 900"))
    write_lines_origins(str(tmp_path / "data" / "code"), [(0, 2, 50)], path="/raw/code/0007.jsonl", num_records=52)
    run(capsys, "run", "lock", path)
    return path


def test_what_it_prints(path, capsys):
    words = ("--document", "web:3", "--record", "0007.jsonl:9", "--reason", 'asked for in "May"')
    status, out, err = run(capsys, "deny", path, *words, "--from-step", 30, "--global-batch-size", 10, "--since-start")
    assert status == 0
    assert err.startswith("the same records may be read on from elsewhere: no origins beside ")
    lines = out.splitlines()
    assert '+documents = ["0007.jsonl:9", "web:3"]' in lines
    assert "+from = 300" in lines
    assert '+reason = "asked for in \\"May\\""' in lines
    rows = {cells[0]: cells[1] for line in lines if len(cells := re.split(r"  +", line.strip())) == 2}
    assert (rows["position"], rows["documents"]) == ("300", "web:3, code:7")
    opened = Run.open(path)
    changed = opened.when("web:3", "code:7", start=300)
    assert changed.denied.all()
    assert rows["positions"] == str(len(np.unique(changed.positions)))
    assert rows["tokens"] == f"{changed.lengths.sum():,}"
    assert rows["digest before"] == rows["digest after"] == opened.digest(300)
    assert "become padding:" in lines
    assert "were trained on before, or are about to be:" in lines
    assert lines[-1] == "nothing else moves"


def test_json(path, capsys):
    words = ("--document", "web:3", "--document", "web:4", "--from-position", 300)
    status, out, _ = run(capsys, "deny", path, *words, "--dry-run", "--json")
    assert status == 0
    told = json.loads(out)
    assert list(told) == [
        "path", "written", "position", "reason", "documents", "already_denied", "held_out", "no_document",
        "unknown_pairs", "listed_until", "num_positions", "num_tokens", "changed", "seen", "digest",
        "order_without_denials", "diff",
    ]  # fmt: skip
    assert (told["written"], told["position"], told["reason"], told["listed_until"]) == (False, 300, None, 900)
    assert (told["documents"], told["already_denied"], told["seen"]) == (["web:3", "web:4"], [], None)
    assert told["digest"]["before"] == told["digest"]["after"] == Run.open(path).digest(300)
    assert told["order_without_denials"]["before"] == told["order_without_denials"]["after"]
    assert {row["document"] for row in told["changed"]} == {3, 4}
    assert told["num_tokens"] == sum(row["length"] for row in told["changed"])
    assert told["num_positions"] == len({row["position"] for row in told["changed"]})
    dealt = ("--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2, "--since-start")
    status, out, _ = run(capsys, "deny", path, *words, *dealt, "--until-step", 50, "--json")
    told = json.loads(out)
    assert told["written"]
    assert told["listed_until"] == 400
    assert {row["step"] == row["position"] // 8 for row in told["changed"] + told["seen"]} == {True}
    assert max(row["position"] for row in told["seen"]) < 300 <= min(row["position"] for row in told["changed"])
    assert all(row["rank"] is not None for row in told["seen"])
