"""`tokenloom doctor`."""

from __future__ import annotations

import json
import os
import re

import pytest

from tokenloom import cli
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


def test_json_has_verdicts_and_facts(tmp_path, capsys):
    assert cli.main(["doctor", "--no-speed", "--json", f"{tmp_path}/absent"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["num_problems"]) == (False, 1)
    assert [check["id"] for check in told["checks"]] == [each.id for each in CHECKS]
    findings = {each["subject"]: each for check in told["checks"] for each in check["findings"]}
    assert findings["data"]["verdict"] == "problem"
    assert findings["memory"]["facts"]["num_total_bytes"] > 0
    assert findings["native"]["verdict"] == "ok"
