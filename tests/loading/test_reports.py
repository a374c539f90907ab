"""Losses by source and waits of a loop, as lines of a file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tests.packing.items import sub_sample
from tests.run.folders import make_run

from tokenloom.errors import InputError
from tokenloom.loading.loader_report import loader_report
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.source_meter import SourceMeter
from tokenloom.loading.source_report import JsonLinesWriter, SourceMeasure, SourceReport
from tokenloom.loading.statistics_file import read_statistics
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.packing.batch import build_packed_microbatches
from tokenloom.packing.context_parallel import context_parallel_indices


def batch_of(sources, mask):
    return {"dataset_id": torch.tensor(sources), "loss_mask": torch.tensor(mask, dtype=torch.float32)}


def test_losses_are_means_over_tokens_with_loss():
    meter = SourceMeter(["web", "code", "books"])
    meter.update(batch_of([0, 1], [[1, 1], [0, 1]]), torch.tensor([[1.0, 3.0], [100.0, 5.0]]))
    meter.update(batch_of([0], [[1, 0]]), torch.tensor([[8.0, 7.0]]))
    report = meter.reduce(step=7)
    assert report.step == 7
    assert [(one.name, one.tokens, one.slots, one.samples) for one in report.sources] == [
        ("web", 3, 4, 2),
        ("code", 1, 2, 1),
        ("books", 0, 0, 0),
    ]
    assert [one.loss for one in report.sources[:2]] == [4.0, 5.0]
    assert math.isnan(report.sources[2].loss)
    assert [(one.tokens, one.total_tokens) for one in meter.reduce().sources] == [(0, 3), (0, 1), (0, 0)]


def test_sums_of_a_run_are_those_of_its_samples(tmp_path):
    run = make_run(tmp_path)
    dataset = run.dataset()
    meter = SourceMeter([source.name for source in run.lock.sources], run=run)
    for rank in range(2):
        for batch in ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), 0, 5, rank, 2)):
            meter.update(batch, batch["labels"].double())
    samples = dataset.batch(range(len(dataset)))
    for number, one in enumerate(meter.reduce(consumed_samples=len(dataset)).sources):
        mine = samples["dataset_id"] == number
        mask, labels = samples["loss_mask"][mine], samples["labels"][mine]
        assert (one.samples, one.slots, one.tokens) == (mine.sum(), mask.size, np.count_nonzero(mask))
        assert one.loss == pytest.approx((labels * mask).sum() / mask.sum(), rel=1e-9)


def test_sums_of_packs_are_those_of_their_sub_samples():
    samples = [sub_sample(number, 5, 8) | {"dataset_id": number % 2} for number in range(3)]
    (pack,) = build_packed_microbatches([samples], "cpu")
    meter = SourceMeter(["web", "code"])
    for rank in range(2):
        own = context_parallel_indices(pack["cu_seqlens_padded"], cp_size=2, cp_rank=rank)
        meter.update(pack | {"loss_mask": pack["loss_mask"][own]}, pack["labels"][own].double()[None])
    for number, one in enumerate(meter.reduce().sources):
        mine = [sample for sample in samples if sample["dataset_id"] == number]
        assert (one.samples, one.slots) == (len(mine), 8 * len(mine))
        weights = sum(float(sample["loss_mask"].sum()) for sample in mine)
        total = sum(float((sample["labels"] * sample["loss_mask"].double()).sum()) for sample in mine)
        assert one.loss == pytest.approx(total / weights, rel=1e-9)


def test_reports_are_lines_of_strict_json_that_are_read_again(tmp_path):
    counts = {"tokens": 1, "slots": 2, "samples": 1, "total_tokens": 1, "total_slots": 2, "total_samples": 1}
    sources = tuple(
        SourceMeasure(name=name, loss=loss, passes=None, **counts) for name, loss in (("web", 2.5), ("code", math.nan))
    )
    loader = ThreadLoader([{"x": 1}] * 3, [[0], [1], [2]])
    assert len(list(loader)) == 3
    write = JsonLinesWriter(tmp_path / "file")
    write(SourceReport(step=3, consumed_samples=9, sources=sources))
    write(loader_report(loader, step=4))
    for line in (tmp_path / "file").read_text().splitlines():
        json.loads(line, parse_constant=lambda constant: 1 / 0)
    found = read_statistics(tmp_path / "file")
    assert (found.sources[0].step, found.sources[0].losses["web"]) == (3, 2.5)
    assert math.isnan(found.sources[0].losses["code"])
    assert (found.loaders[0].step, found.loaders[0].wait) == (4, loader.wait)
    (tmp_path / "file").write_text('{"step": 1}\n[1]\n')
    with pytest.raises(InputError, match=r"expected a report as a JSON object in line 2 of `.*`, found list"):
        read_statistics(tmp_path / "file")
