"""Reports of sources, and where they go."""

from __future__ import annotations

import json
import math

from tokenloom.loading.source_report import (
    JsonLinesWriter,
    SourceMeasure,
    SourceReport,
    log_to_tensorboard,
    log_to_wandb,
)


def measure(name, loss, tokens, passes=None):
    counts = {"tokens": tokens, "slots": 8, "samples": 2, "total_tokens": 10 * tokens}
    return SourceMeasure(name=name, loss=loss, passes=passes, total_slots=80, total_samples=20, **counts)


REPORT = SourceReport(
    step=3,
    consumed_samples=12,
    sources=(measure("web", 2.5, 6, 1.25), measure("code", math.nan, 4), measure("books", math.nan, 0)),
)


def test_each_report_is_a_line_of_strict_json(tmp_path):
    writer = JsonLinesWriter(tmp_path / "sources.jsonl")
    writer(REPORT)
    writer(REPORT)
    first, second = (tmp_path / "sources.jsonl").read_text().splitlines()
    found = json.loads(first, parse_constant=lambda constant: 1 / 0)
    assert first == second
    assert (found["step"], found["consumed_samples"]) == (3, 12)
    assert found["sources"][0] == {
        "name": "web", "loss": 2.5, "tokens": 6, "slots": 8, "samples": 2, "total_tokens": 60, "total_slots": 80,
        "total_samples": 20, "passes": 1.25,
    }  # fmt: skip
    assert [one["loss"] for one in found["sources"]] == [2.5, "nan", "nan"]


class Plots:
    def __init__(self):
        self.points = []

    def add_scalar(self, tag, value, step):
        self.points.append((tag, value, step))

    def log(self, data, *, step):
        self.points += [(tag, value, step) for tag, value in data.items()]


def test_plots_get_points_by_source():
    one, other = Plots(), Plots()
    log_to_tensorboard(one)(REPORT)
    log_to_wandb(other, prefix="data")(REPORT)
    assert [tag for tag, _, _ in one.points] == [
        "source/loss/web", "source/tokens/web", "source/passes/web", "source/loss/code", "source/tokens/code",
        "source/tokens/books",
    ]  # fmt: skip
    assert one.points[:3] == [("source/loss/web", 2.5, 3), ("source/tokens/web", 60, 3), ("source/passes/web", 1.25, 3)]
    assert [tag.removeprefix("data") for tag, _, _ in other.points] == [
        tag.removeprefix("source") for tag, _, _ in one.points
    ]
