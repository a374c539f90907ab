"""How far a job is, in words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.corpus.shard_reports import key_of, write_report
from tests.report.pages import words_of

from tokenloom.errors import DatasetNotFoundError
from tokenloom.inspect.target import open_target
from tokenloom.report.job_section import job_section
from tokenloom.report.options import ReportOptions

NOW = 10_000.0
KEY = key_of(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    description = {"settings": {}, "inputs": "", "files": ["a"], "num_shards": 4}
    (tmp_path / "job.json").write_text(json.dumps(description))
    write_report(tmp_path, 1, written=NOW - 10, num_text_bytes=1000)
    record = {"file": "<b>.jsonl", "line": 2, "reason": "no <i>key</i>", "text": "\x1b[31m"}
    (tmp_path / f"{KEY}.rejected.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path


def section_of(folder: Path):
    return job_section(open_target([str(folder)]), ReportOptions(now=NOW))


def add_worker(folder: Path, *, touched: float) -> None:
    lock = folder / f"{2:024x}.lock"
    lock.write_text("elsewhere 77")
    os.utime(lock, (touched, touched))


def test_a_job_at_work_is_told(folder):
    add_worker(folder, touched=NOW - 2)
    section = section_of(folder)
    words = words_of(section.html)
    assert "shards done 1 of 4 (25%)" in words
    assert "speed 2 tokens/s time left, about 1 min last shard done 10 s ago" in words
    assert "now 1 at work" in words
    assert f"elsewher 77 shard {2:024x} works 2.0 s ago" in words
    assert section.findings == ["25% of the records were rejected so far: 1."]


def test_a_job_that_stands_still_is_told(folder):
    add_worker(folder, touched=NOW - 1000)
    section = section_of(folder)
    assert "now nobody works on it" in words_of(section.html)
    assert "time left" not in words_of(section.html)
    assert section.findings[0] == "Nobody works on this job: the same command goes on where it was."


def test_what_was_rejected_is_shown_as_text(folder):
    html = section_of(folder).html
    assert "no &lt;i&gt;key&lt;/i&gt;" in html
    assert "&lt;b&gt;.jsonl:2" in html
    assert "\x1b" not in html


def test_a_job_that_is_done_meanwhile_is_told(folder):
    target = open_target([str(folder)])
    (folder / "job.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="the job is done"):
        job_section(target, ReportOptions())


def test_other_targets_are_no_jobs(write_pair):
    assert job_section(open_target([write_pair([1])]), ReportOptions()) is None
