"""Report sections about jobs, training loops and contamination."""

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
from tokenloom_look.report.contamination_section import contamination_section
from tokenloom_look.report.job_section import job_section
from tokenloom_look.report.section import ReportOptions
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


def test_a_running_job_is_reported(folder):
    add_worker(folder, touched=NOW - 2)
    section = section_of(folder)
    words = words_of(section.html)
    assert "shards done 1 of 4 (25%)" in words
    assert "speed 2 tokens/s estimated time left 1 min last shard done 10 s ago" in words
    assert "state running in 1 process" in words
    assert section.findings == ["25% of the records were rejected so far: 1."]
    assert "no &lt;i&gt;key&lt;/i&gt;" in section.html
    assert "&lt;b&gt;.jsonl:2" in section.html
    assert "\x1b" not in section.html


TARGET = locked([source("web", 9)], [segment(0, 6, [1])])


def test_statistics_are_drawn_over_steps(tmp_path):
    write = JsonLinesWriter(tmp_path / "train.jsonl")
    for step, waited in ((0, 0.0), (10, 2.0), (20, 12.0)):
        wait = DataWait(num_batches=step, total_seconds=waited, longest_seconds=waited)
        losses = {"<web>": 3.0 - step / 10, "code": np.float32("nan") if step == 10 else torch.tensor(0.5)}
        storage = {"s3://a": {"requests": step}, "s3://b": {"requests": 7}}
        write(unix_seconds=1000 + 10 * step, step=step, loss=losses, wait=wait, storage=storage, note="not a number")
    with open(write.path, "a") as stream:
        stream.write('{"step": 30, "lo')  # a line that is being written
    found = made(statistics_section, TARGET, statistics=str(write.path))
    share, loss, requests = found.charts
    assert (share.title, share.x.tolist()) == ("Share of the time spent waiting for data", [0, 10, 20])
    np.testing.assert_equal(share.series[0].values, [np.nan, 0.02, 0.1])
    assert found.findings == ["The training loop waited for data 6% of the time."]
    assert (loss.title, loss.summary) == ("loss", "Last values: <web> 1, code 0.5.")
    np.testing.assert_equal(
        {each.name: each.values for each in loss.series}, {"<web>": [3, 2, 1], "code": [0.5, np.nan, 0.5]}
    )
    assert (requests.title, [each.name for each in requests.series]) == ("storage/requests", ["s3://a", "s3://b"])
    assert "lines 3" in words_of(found.html)


PASSAGE = {"source": "web", "document": 7, "of_item": "a <b>", "of_document": "A\n\x1b[31m<b>"}
COLUMNS = ("benchmark", "items", "too_short", "found", "coverage", "documents", "first_step")
FOUND = {
    "words": 13,
    "num_tokens": 1000,
    "benchmarks": [
        dict(zip(COLUMNS, ("b/x.jsonl", 30, 1, 22, 0.5, 3, 7), strict=True)),
        dict(zip(COLUMNS[:-1], ("new.jsonl", 1, 0, 0, 0.0, 0), strict=True)),
    ],
    "sources": [{"source": "web", "items": 22, "documents": 3}],
    "items": [
        {"benchmark": "b/x.jsonl", "record": number, "coverage": number / 22, "passages": [PASSAGE]}
        for number in range(1, 23)
    ],
}


def test_passages_are_shown_side_by_side(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(FOUND))
    section = made(contamination_section, TARGET, contamination=str(path))
    words = words_of(section.html)
    assert "x.jsonl 30 1 22 50% 3 7 new.jsonl 1 0 0 0% 0 1,000 tokens, searched for n-grams of 13 words" in words
    assert "x.jsonl:22: 100% of its n-grams, in 1 documents where text x.jsonl:22 a <b> web:7 A \\x1b[31m<b>" in words
    assert words.endswith("2 more items are not shown.")
    assert "<b>" not in section.html
    assert section.findings == ["22 of 30 items of x.jsonl were found in the data."]


def test_wrong_files_are_errors(tmp_path):
    assert made(contamination_section, TARGET) is None
    path = tmp_path / "found.json"
    with pytest.raises(InputError, match=r"`.*found\.json`: cannot read it: No such file"):
        made(contamination_section, TARGET, contamination=str(path))
    path.write_text('{"benchmarks": []}\n[1]\n')
    with pytest.raises(InputError, match=r"`.*found\.json`: cannot read it: "):
        made(contamination_section, TARGET, contamination=str(path))
    with pytest.raises(InputError, match=r"`.*`: line 2 is not a JSON object"):
        made(statistics_section, TARGET, statistics=str(path))
