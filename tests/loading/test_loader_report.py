"""How long a loop waited for its data, and what reading them cost, as a line."""

from __future__ import annotations

import json
import time

import numpy as np
from torch.utils.data import DataLoader

from tokenloom.loading.loader_report import LoaderReport, loader_report
from tokenloom.loading.source_report import JsonLinesWriter
from tokenloom.loading.statistics_file import read_statistics
from tokenloom.loading.thread_loader import DataWait, ThreadLoader
from tokenloom.storage.statistics import SourceStatistics


class Numbers:
    def batch(self, positions):
        return {"position": np.array(positions)}


def test_a_report_is_of_now(tmp_path):
    loader = ThreadLoader(Numbers(), [[0], [1], [2]])
    before = time.time()
    batches = iter(loader)
    next(batches)
    first = loader_report(loader, step=1, consumed_samples=8)
    list(batches)
    assert first.wait.num_batches == 1
    assert loader_report(loader).wait.num_batches == 3
    assert before <= first.unix_seconds <= time.time()
    assert (first.step, first.consumed_samples, first.storage) == (1, 8, {})


def test_waits_of_other_loaders_are_not_known():
    report = loader_report(DataLoader([1, 2, 3]), step=4)
    assert report.wait is None
    assert report.as_json()["wait"] is None


def test_lines_come_back(tmp_path):
    report = LoaderReport(
        step=7,
        consumed_samples=None,
        unix_seconds=5.5,
        wait=DataWait(num_batches=3, last_seconds=0.5, total_seconds=1.5, longest_seconds=0.75),
        storage={"s3://bucket/web.bin": SourceStatistics(bytes_used=5, hits=2, wait_seconds=0.25)},
    )
    JsonLinesWriter(tmp_path / "file")(report)
    [line] = read_statistics(tmp_path / "file").loaders
    assert (line.step, line.unix_seconds, line.wait, line.storage) == (7, 5.5, report.wait, report.storage)
    assert json.loads((tmp_path / "file").read_text()) == report.as_json()
