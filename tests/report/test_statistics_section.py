"""Waits, storage and losses, as a report draws them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tests.report.pages import locked, made, words_of
from tests.run.small_runs import segment, source

from tokenloom.errors import InputError
from tokenloom.loading.loader_report import LoaderReport
from tokenloom.loading.source_report import JsonLinesWriter
from tokenloom.loading.thread_loader import DataWait
from tokenloom.report.statistics_section import statistics_section
from tokenloom.storage.statistics import SourceStatistics

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


def section_of(path: str):
    return made(statistics_section, TARGET, statistics=path)


def series(section, name: str) -> list[float]:
    [chart] = [chart for chart in section.charts if chart.id == name]
    return np.asarray(chart.series[0].values).tolist()


def test_waits_are_those_since_the_report_before(tmp_path):
    found = section_of(write(tmp_path, report(0, 0, 0.0), report(10, 20, 2.0), report(20, 60, 12.0)))
    assert [chart.id for chart in found.charts] == ["waits", "wait-share"]
    assert series(found, "waits") == [0.1, 0.25]
    assert series(found, "wait-share") == [0.02, 0.1]
    assert found.charts[0].x.tolist() == [10, 20]
    assert found.charts[0].summary == "The loop waited 0.2 s for a batch in the mean, and 6.0 s for the slowest."
    assert found.findings == ["The training loop waited for its data 6% of the time."]
    assert "seconds that it waited for them 12.00 s" in words_of(found.html)


def test_a_process_that_began_anew_counts_from_nothing(tmp_path):
    found = section_of(write(tmp_path, report(0, 0, 0.0), report(10, 20, 2.0), report(15, 10, 5.0)))
    assert series(found, "waits") == [0.1, 0.5]
    assert series(found, "wait-share")[0] == 0.02
    assert np.isnan(series(found, "wait-share")[1])


def test_storage_is_drawn_and_added_up_over_processes(tmp_path):
    first = report(1, 1, 0.0, requests=10, hits=3, waits=1, retries=1, bytes_used=100, bytes_fetched=300)
    later = report(2, 2, 0.0, requests=30, hits=10, waits=4, retries=1, bytes_used=200, bytes_fetched=900)
    anew = report(3, 1, 0.0, requests=5, hits=0, waits=5, retries=5, bytes_used=50, bytes_fetched=50)
    found = section_of(write(tmp_path, first, later, anew))
    assert series(found, "cache-hits") == [0.7, 0]
    assert series(found, "retries") == [0, 5]
    assert f"{WEB} 250 bytes 950 bytes 3.80 35 6 52.6%" in words_of(found.html)
    assert "<web>" not in found.html
    assert found.findings == [
        "20% of the requests to object storage were repeated.",
        "4.3 bytes were fetched of object storage for each that was used.",
    ]


def test_losses_are_drawn_by_source_and_in_the_order_of_steps(tmp_path):
    lines = [
        {"step": step, "sources": [{"name": "web", "loss": 4.0 - step}, {"name": "code", "loss": "nan"}]}
        for step in (1, 3, 2)
    ]
    (tmp_path / "sources.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [chart] = section_of(str(tmp_path / "sources.jsonl")).charts
    assert chart.x.tolist() == [1, 2, 3]
    assert chart.series[0].values.tolist() == [3, 2, 1]
    assert np.isnan(chart.series[1].values).all()
    assert chart.summary == "At the end the losses are web 1."


def test_one_report_has_no_picture_and_none_says_so(tmp_path):
    one = section_of(write(tmp_path, report(5, 9, 1.0)))
    assert (list(one.charts), list(one.findings)) == ([], [])
    (tmp_path / "other.jsonl").write_text('{"lr": 1}\n')
    assert "None of its lines is a report" in words_of(section_of(str(tmp_path / "other.jsonl")).html)


def test_reports_without_waits_have_no_picture_of_them(tmp_path):
    reports = [dataclasses.replace(report(step, 0, 0.0), wait=None) for step in range(3)]
    assert list(section_of(write(tmp_path, *reports)).charts) == []


def test_without_a_file_there_is_no_section_and_a_wrong_one_is_an_error(tmp_path):
    assert made(statistics_section, TARGET) is None
    with pytest.raises(InputError, match="cannot read"):
        section_of(str(tmp_path / "none"))
