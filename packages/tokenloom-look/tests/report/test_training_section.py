"""What a report says of a job that is made, and of a training loop."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from report_pages import locked, made, words_of
from tests.corpus.shard_reports import key_of, write_report
from tests.run.small_runs import segment, source

from tokenloom.inspect.target import open_target
from tokenloom.loading.loader_report import LoaderReport
from tokenloom.loading.source_report import JsonLinesWriter
from tokenloom.loading.thread_loader import DataWait
from tokenloom.storage.statistics import SourceStatistics
from tokenloom_look.report.job_section import job_section
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.statistics_section import statistics_section

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


def test_what_was_rejected_is_shown_as_text(folder):
    html = section_of(folder).html
    assert "no &lt;i&gt;key&lt;/i&gt;" in html
    assert "&lt;b&gt;.jsonl:2" in html
    assert "\x1b" not in html


TARGET = locked([source("web", 9)], [segment(0, 6, [1])])
WEB = "s3://bucket/<web>.bin"


def write(folder: Path, *reports: LoaderReport) -> str:
    for report in reports:
        JsonLinesWriter(folder / "loader.jsonl")(report)
    return str(folder / "loader.jsonl")


def report(step: int, batches: int, waited: float, **storage: float) -> LoaderReport:
    return LoaderReport(
        step=step,
        consumed_samples=None,
        unix_seconds=1000.0 + 10 * step,
        wait=DataWait(num_batches=batches, total_seconds=waited, longest_seconds=waited / 2),
        storage={WEB: SourceStatistics(**storage)} if storage else {},
    )


def statistics_of(path: str):
    return made(statistics_section, TARGET, statistics=path)


def series(section, name: str) -> list[float]:
    [chart] = [chart for chart in section.charts if chart.id == name]
    return np.asarray(chart.series[0].values).tolist()


def test_waits_are_those_since_the_report_before(tmp_path):
    found = statistics_of(write(tmp_path, report(0, 0, 0.0), report(10, 20, 2.0), report(20, 60, 12.0)))
    assert [chart.id for chart in found.charts] == ["waits", "wait-share"]
    assert series(found, "waits") == [0.1, 0.25]
    assert series(found, "wait-share") == [0.02, 0.1]
    assert found.charts[0].x.tolist() == [10, 20]
    assert found.charts[0].summary == "The loop waited 0.2 s for a batch in the mean, and 6.0 s for the slowest."
    assert found.findings == ["The training loop waited for its data 6% of the time."]
    assert "seconds that it waited for them 12.00 s" in words_of(found.html)


def test_storage_is_drawn_and_added_up_over_processes(tmp_path):
    first = report(1, 1, 0.0, requests=10, hits=3, waits=1, retries=1, bytes_used=100, bytes_fetched=300)
    later = report(2, 2, 0.0, requests=30, hits=10, waits=4, retries=1, bytes_used=200, bytes_fetched=900)
    anew = report(3, 1, 0.0, requests=5, hits=0, waits=5, retries=5, bytes_used=50, bytes_fetched=50)
    found = statistics_of(write(tmp_path, first, later, anew))
    assert series(found, "cache-hits") == [0.7, 0]
    assert series(found, "retries") == [0, 5]
    assert f"{WEB} 250 bytes 950 bytes 3.80 35 6 52.6%" in words_of(found.html)
    assert "<web>" not in found.html
    assert found.findings == [
        "20% of the requests to object storage were repeated.",
        "4.3 bytes were fetched of object storage for each that was used.",
    ]
