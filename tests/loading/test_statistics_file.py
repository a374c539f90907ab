"""Files that training loops write, whole, growing, foreign and damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tokenloom.errors import InputError
from tokenloom.loading.source_report import JsonLinesWriter, SourceMeasure, SourceReport
from tokenloom.loading.statistics_file import read_statistics


def write(folder: Path, *lines: object, end: str = "\n") -> Path:
    path = folder / "statistics.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


def test_reports_of_sources_come_back(tmp_path):
    counts = {"tokens": 1, "slots": 2, "samples": 1, "total_tokens": 1, "total_slots": 2, "total_samples": 1}
    web = SourceMeasure(name="web", loss=2.5, passes=1.25, **counts)
    code = SourceMeasure(name="code", loss=math.nan, **counts)
    JsonLinesWriter(tmp_path / "file")(SourceReport(step=3, consumed_samples=9, sources=(web, code)))
    found = read_statistics(tmp_path / "file")
    [line] = found.sources
    assert (line.step, line.losses["web"], line.passes) == (3, 2.5, {"web": 1.25})
    assert math.isnan(line.losses["code"])
    assert found.loaders == []


def test_other_lines_and_members_say_nothing(tmp_path):
    wait = {"num_batches": 1, "total_seconds": 2, "of_a_later_version": "x"}
    found = read_statistics(write(tmp_path, {"lr": 0.1}, {"wait": wait, "step": True}, {"storage": {}}))
    assert (found.num_lines, len(found.loaders), found.sources) == (3, 2, [])
    assert [line.step for line in found.loaders] == [2, 3]
    assert found.loaders[0].wait.total_seconds == 2


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    found = read_statistics(write(tmp_path, {"wait": None}, '{"wait": {"num_ba', end=""))
    assert (found.num_lines, found.num_unread, len(found.loaders)) == (2, 1, 1)


def test_of_a_large_file_some_lines_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenloom.loading.statistics_file._MOST_BYTES", 1000)
    path = write(tmp_path, *({"step": step, "wait": None} for step in range(500)))
    found = read_statistics(path)
    assert found.num_lines == 500
    assert len(found.loaders) == 500 - found.num_unread < 60
    assert found.loaders[1].step == found.loaders[2].step - found.loaders[1].step


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected a report as JSON in line 2 of `"),
        ("[" * 100_000, "expected a report as JSON in line 2 of `"),
        ("[1]", "expected a report as a JSON object in line 2 of `.*`, found list"),
        ('{"wait": 3}', "expected members by name as `wait` in line 2 of `.*`, found int"),
        ('{"wait": {"num_batches": "x"}}', "expected a number as num_batches of `wait` in line 2 of `.*`, found 'x'"),
        ('{"storage": {"a": []}}', "expected members by name as `storage` in line 2"),
        ('{"sources": [{"name": "web", "loss": null}]}', "expected a number as a loss in line 2 of `.*`, found None"),
        ('{"sources": [7]}', "expected members by name as `sources` in line 2"),
        ('{"wait": null, "unix_seconds": true}', "expected a number as `unix_seconds` in line 2"),
    ],
)
def test_what_is_no_report_is_refused_with_its_line(tmp_path, line: str, message: str):
    with pytest.raises(InputError, match=message):
        read_statistics(write(tmp_path, {"step": 1}, line))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read `.*none`: No such file"):
        read_statistics(tmp_path / "none")
