"""What a report says of a job that is made, and of a training loop."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from report_pages import locked, made, words_of
from tests.corpus.shard_reports import key_of, write_report
from tests.run.small_runs import segment, source

from tokenloom.errors import InputError
from tokenloom.loading.losses import JsonLinesWriter
from tokenloom.loading.thread_loader import DataWait
from tokenloom_look.report.job_section import job_section
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.statistics_section import statistics_section
from tokenloom_look.target import open_target

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
    assert section.findings == ["25% of the records were rejected so far: 1."]


def test_what_was_rejected_is_shown_as_text(folder):
    html = section_of(folder).html
    assert "no &lt;i&gt;key&lt;/i&gt;" in html
    assert "&lt;b&gt;.jsonl:2" in html
    assert "\x1b" not in html


TARGET = locked([source("web", 9)], [segment(0, 6, [1])])


def statistics_of(path: Path):
    return made(statistics_section, TARGET, statistics=str(path))


def test_numbers_of_a_loop_are_drawn_over_its_steps(tmp_path):
    write = JsonLinesWriter(tmp_path / "train.jsonl")
    for step, waited in ((0, 0.0), (10, 2.0), (20, 12.0)):
        wait = DataWait(num_batches=step, total_seconds=waited, longest_seconds=waited)
        losses = {"<web>": 3.0 - step / 10, "code": np.float32("nan") if step == 10 else torch.tensor(0.5)}
        write(
            unix_seconds=1000 + 10 * step,
            step=step,
            loss=losses,
            wait=wait,
            storage={"s3://a": {"requests": step}, "s3://b": {"requests": 7}},
            note="text is left out",
        )
    with open(write.path, "a") as stream:
        stream.write('{"step": 30, "lo')  # a line that is being written
    found = statistics_of(tmp_path / "train.jsonl")
    share, loss, requests = found.charts
    assert (share.title, share.x.tolist()) == ("Share of the time spent waiting for data", [0, 10, 20])
    np.testing.assert_equal(share.series[0].values, [np.nan, 0.02, 0.1])
    assert found.findings == ["The training loop waited for its data 6% of the time."]
    assert (loss.title, loss.summary) == ("loss", "At the end: <web> 1, code 0.5.")
    np.testing.assert_equal(
        {each.name: each.values for each in loss.series}, {"<web>": [3, 2, 1], "code": [0.5, np.nan, 0.5]}
    )
    assert (requests.title, [each.name for each in requests.series]) == ("storage/requests", ["s3://a", "s3://b"])
    assert "lines 3" in words_of(found.html)


def test_a_file_of_something_else_is_an_error(tmp_path):
    (tmp_path / "file").write_text('{"step": 1}\n[1]\n')
    with pytest.raises(InputError, match=r"line 2 of `.*` is no JSON object"):
        statistics_of(tmp_path / "file")
