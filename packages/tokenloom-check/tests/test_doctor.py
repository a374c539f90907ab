"""`tokenloom doctor`."""

import json
import os
import re

import pytest

from tokenloom import cli
from tokenloom_check import doctor


def test_one_result_per_line(tmp_path, capsys):
    assert cli.main(["doctor", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert all(len(line) <= 80 for line in lines)
    verdicts = [line for line in lines if re.match("(ok|warning|problem) ", line)]
    assert re.fullmatch(r"\d+ ok, warnings: \d+, problems: 0", lines[-1])
    assert sum(map(int, re.findall(r"\d+", lines[-1]))) == len(verdicts)
    assert any(
        line.startswith("ok       native          the compiled module computes a known result") for line in lines
    )
    assert os.listdir(tmp_path) == []


def test_json_and_a_missing_folder(tmp_path, capsys):
    assert cli.main(["doctor", "--json", f"{tmp_path}/absent"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["num_problems"]) == (False, 1)
    assert found["findings"][-1]["text"] == f"`{tmp_path}/absent`: no such file, folder or pair"


def test_a_failing_check_is_reported_as_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "crc32", lambda _: 0)
    findings = {each.subject: each for each in doctor.check_all([])}
    assert findings["native"].verdict == "problem"
    assert findings["shared memory"].verdict in ("ok", "warning")


@pytest.mark.slow
def test_a_bucket_answers_and_a_missing_object_is_a_problem(bucket):
    bucket.put("data/web.bin", bytes(range(256)))
    reached, missing = [doctor.check_bucket(bucket.url(key))[0] for key in ("data/web", "absent/data")]
    assert (reached.verdict, reached.text.startswith(f"{bucket.url('data/web.bin')}: 256 bytes")) == ("ok", True)
    text = f"no object, pair or folder at `{bucket.url('absent/data')}`"
    assert (missing.verdict, missing.text) == ("problem", text)
