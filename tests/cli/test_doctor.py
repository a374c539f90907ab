"""`tokenloom doctor`."""

from __future__ import annotations

import json
import os
import re

import pytest

from tokenloom import cli
from tokenloom.cli.doctor import _lines
from tokenloom.doctor.check import Finding, Verdict
from tokenloom.doctor.checks import CHECKS
from tokenloom.storage.settings import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def test_a_verdict_per_line(tmp_path, capsys):
    assert cli.main(["doctor", "--no-speed", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    verdicts = [line for line in lines if re.match("  (ok|warning|problem) ", line)]
    assert re.fullmatch(r"\d+ ok, warnings: \d+, problems: 0", lines[-1])
    assert sum(map(int, re.findall(r"\d+", lines[-1]))) == len(verdicts)
    assert {each.title for each in CHECKS if each.id != "buckets"} <= set(lines)
    assert os.listdir(tmp_path) == []


def test_a_problem_is_the_exit_status(tmp_path, capsys):
    assert cli.main(["doctor", "--no-speed", f"{tmp_path}/absent"]) == 1
    out = capsys.readouterr().out
    assert "  problem  data           " in out
    assert out.endswith("problems: 1\n")


def test_what_is_written_is_said_before(tmp_path, capsys):
    assert cli.main(["doctor", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == f"measuring the disk of {tmp_path}: 64 MB and 2 s at most\n"
    assert "speed" in out
    assert os.listdir(tmp_path) == []


def test_json_has_verdicts_and_facts(tmp_path, capsys):
    assert cli.main(["doctor", "--no-speed", "--json", f"{tmp_path}/absent"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["num_problems"]) == (False, 1)
    assert [check["id"] for check in told["checks"]] == [each.id for each in CHECKS]
    findings = {each["subject"]: each for check in told["checks"] for each in check["findings"]}
    assert findings["data"]["verdict"] == "problem"
    assert findings["memory"]["facts"]["num_total_bytes"] > 0
    assert findings["native"]["verdict"] == "ok"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lines_fit_and_lose_nothing(width):
    path = "/a/very/long/path/" + "x" * 120
    found = Finding(
        subject="cache", verdict=Verdict.warning, text=f"{path}: ext4 of /dev/vda", hint="make some room " * 9
    )
    lines = _lines(found, width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("  warning  cache          ")
    assert path in "".join(line.strip() for line in [lines[0][26:], *lines[1:]])
    assert " ".join(" ".join(lines).split()).count("make some room") == 9
