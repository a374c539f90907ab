"""`tokenloom run plan`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import RUN, run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    text = RUN.replace('code = "data/code"', 'code = { data = "data/code", max_passes = 1 }')
    path = write_run(tmp_path, text.replace("samples = 100", 'samples = 1000\non_exhausted = "renormalise"'))
    run(capsys, "run", "lock", path)
    return path


def test_stages_passes_caps_and_what_stays_unseen(path, capsys):
    status, out, err = run(capsys, "run", "plan", path)
    assert (status, err) == (0, "")
    head = f"{path}: 2 sources, 1,000 samples, 16,000 tokens\nrun {Run.open(path).identity}\n"
    assert out.startswith(f"{head}\nstage main from position 0\n")
    assert out.count("\nstage main from position ") == 2
    assert "cap: code has had its 1 pass at position 797:\n     others are read on\n" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["source", "passes", "tokens", "offered", "seen", "unseen", "cut", "off"] in rows
    assert ["web", "5", "15,200", "12,816", "2,304", "80"] in rows
    assert out.endswith("end: position 1,000\n")
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_steps_and_dates(path, capsys):
    words = ("--global-batch-size", 10, "--tokens-per-second", 16, "--start", "2026-12-01")
    out = run(capsys, "run", "plan", path, *words)[1]
    assert "stage main from position 0 (step 0, 2026-12-01 00:00)" in out
    assert out.endswith("end: position 1,000 (step 100, 2026-12-01 00:16)\n")
    told = json.loads(run(capsys, "run", "plan", path, *words, "--json")[1])
    assert told["end"] == {"position": 1000, "step": 100, "seconds": 1000.0, "date": "2026-12-01T00:16:40"}
    assert told["caps"][0]["step"] == 79
    assert "end: position 1,000 (after 16.7 minutes)\n" in run(capsys, "run", "plan", path, *words[2:4])[1]
    slow = ("--tokens-per-second", 1e-9, "--start", "2026-12-01")
    assert "up to the year 9999" in run(capsys, "run", "plan", path, *slow)[2]
