"""Fill and imbalance, as a report says them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.pairs import write_pair as write_sequences
from tests.report.pages import made, words_of
from tests.run.audit.ledgers import make_kind
from tests.run.folders import HEAD, make_run

from tokenloom.inspect.target import SampleSettings, Target, open_target
from tokenloom.order.packs import best_fit_report
from tokenloom.report.packing_section import packing_section

EIGHT = SampleSettings(sequence_length=8)


def target(*words: str, settings: SampleSettings = EIGHT) -> Target:
    return open_target(list(words), settings=settings)


def test_fill_is_that_of_best_fit_packs_and_windows_cut_by_chance(write_pair):
    lengths = [3, 9, 4, 2, 0, 20]
    found = made(packing_section, target(write_pair(lengths)))
    report = best_fit_report(np.array(lengths, dtype=np.int32), sequence_length=8)
    [chart] = found.charts
    fill, packs, windows = (dict(zip(chart.x, each.values, strict=True)) for each in chart.series)
    assert list(fill) == [2, 4, 8, 16, 32]
    assert fill[8] == report.fill
    assert packs[8] == 1 / 5
    assert windows[8] == pytest.approx((2 + 8 + 3 + 1 + 8) / 8 / 5)
    assert "8 (as set)" in words_of(found.html)
    assert found.findings == []


def test_packs_that_waste_much_are_a_finding(write_pair):
    settings = SampleSettings(sequence_length=8, window_policy="best_fit")
    found = made(packing_section, target(write_pair([6] * 50), settings=settings))
    assert found.findings == ["Packs of 8 tokens are 33.3% padding."]


def test_windows_cut_as_often_as_the_section_says(rng):
    lengths = rng.integers(1, 30, size=4000)
    ends = np.cumsum(rng.permutation(lengths))
    cut = ((ends - 1) // 16 > (ends - np.diff(ends, prepend=0)) // 16).mean()
    assert cut == pytest.approx(np.minimum(lengths - 1, 16).sum() / 16 / 4000, abs=0.04)


def test_a_part_of_many_documents_stands_for_all(write_pair, monkeypatch):
    monkeypatch.setattr("tokenloom.report.packing_section._MOST_DOCUMENTS", 100)
    monkeypatch.setattr("tokenloom.report.packing_section._CHUNK", 10)
    found = made(packing_section, target(write_pair([5] * 995)))
    assert "From the lengths of 100 of 995 documents, at even places." in words_of(found.html)


def test_a_run_is_packed_at_its_own_length(tmp_path):
    found = made(packing_section, open_target([make_run(tmp_path, head=HEAD).path]))
    assert found.charts[0].x[2] == 16


def test_conversations_of_a_pair_are_packed_for_ranks(tmp_path, rng):
    talks = [
        conversation((PROMPT, [1] * int(prompt)), (ANSWER, [2] * int(answer)))
        for prompt, answer in rng.integers(1, 30, size=(300, 2))
    ]
    prefix = write_conversations(tmp_path / "talks", talks)
    found = made(packing_section, target(prefix, settings=SampleSettings(sequence_length=64)), global_batch_size=128)
    words = words_of(found.html)
    assert "A global batch of 128 conversations" in words
    assert "cost_balanced" in words
    _, imbalance, lengths = found.charts
    assert [each.name for each in imbalance.series] == ["dp_balanced", "cost_balanced"]
    assert np.nanmin(imbalance.series[1].values) >= 1
    assert sum(lengths.series[0].values) == 128


def test_a_run_of_conversations_has_a_global_batch(tmp_path):
    run = make_kind(tmp_path, "varlen")
    opened = open_target([run.path])
    section = made(packing_section, dataclasses.replace(opened, run=run), global_batch_size=32)
    assert "A global batch of 32 conversations" in words_of(section.html)


def test_nothing_to_pack_has_no_section(tmp_path, write_pair):
    assert made(packing_section, target(write_pair([0, 0]))) is None
    assert made(packing_section, target(write_sequences(tmp_path / "images", [[[1], [2]]], multimodal=True))) is None
