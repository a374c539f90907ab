"""Report sections about runs and blends: stages, passes, ledger, packing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_pages import locked, made, target_of, words_of
from tests.run.audit.ledgers import CHANGED, DENIED, Words
from tests.run.folders import HEAD, write_data, write_toml
from tests.run.small_runs import pair, segment, source

from tokenloom.order.packs import best_fit_report
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.run import Run
from tokenloom_look.report.blend_section import blend_section
from tokenloom_look.report.ledger_section import ledger_section
from tokenloom_look.report.packing_section import packing_section
from tokenloom_look.report.run_sections import held_out_section, passes_section, stages_section
from tokenloom_look.target import SampleSettings, Target, open_target

WEB, CODE = source("web", 80), source("code", 2)
TWO = [segment(0, 60, [1, 0]), segment(60, 40, [3, 1], stage="decay")]


def test_stages_and_blend():
    found = made(stages_section, locked([WEB, CODE], TWO))
    words = words_of(found.html)
    assert "positions 100 tokens of samples 1,000" in words
    assert "main 0 60 10 1 web 100%" in words
    assert "decay 60 40 10 2 web 75%, code 25%" in words
    [blend] = found.charts
    assert (blend.kind, blend.y_format) == ("stacked", "share")
    assert blend.summary == "Shares of the largest sources: web 90%, code 10%."
    assert [(mark.x, mark.label) for mark in blend.marks] == [(60, "decay")]
    web, code = (np.array(each.values) for each in blend.series)
    xs = np.array(blend.x)
    np.testing.assert_allclose(web + code, 1)
    assert (code[xs < 60] == 0).all()
    assert code[xs > 60].mean() == pytest.approx(0.25, abs=0.05)
    assert xs.tolist() == sorted(xs.tolist())
    assert code[xs == 60].tolist() == [0, code[xs == 60][1]]  # a step, not a slope


def test_passes_and_repetition():
    found = made(passes_section, locked([WEB, CODE, source("idle", 3)], TWO))
    words = words_of(found.html)
    assert "web 1.12 1,602 900 700 2" in words
    assert "code 5.00 105 100 0 5" in words
    assert found.findings == ["code is read 5.0 times up to position 100.", "idle is in no sample of the run."]
    [passes] = found.charts
    assert [each.name for each in passes.series] == ["web", "code"]
    assert passes.series[1].values[-1] == 5
    assert passes.summary == "Passes at the end, most often read sources first: code 5.00, web 1.12."


def test_held_out_and_denied_documents():
    held = replace(pair(1000, name="a"), num_documents=1000, held_blocks=2, held_tokens=500)
    some = replace(pair(1000, name="b"), held_documents=7, held_tokens=90)
    denials = (LockedDenial(start=5, documents=((0, (1, 2, 3)),)),)
    sources = [LockedSource(name="web", pairs=(held,)), LockedSource(name="code", pairs=(some,)), WEB]
    found = made(held_out_section, locked(sources, [segment(0, 6, [1, 1, 1])], denials=denials))
    words = words_of(found.html)
    assert "web 512 500 50% code 7 90 9%" in words
    assert "5 3 web 3 Samples have padding in their place." in words
    assert made(held_out_section, locked([WEB], [segment(0, 6, [1])])) is None


def run_of(folder, stages=CHANGED, head=HEAD, eod=5) -> Run:
    write_data(folder)
    return Run.open(write_toml(folder, stages, head=head), tokenizer=Words(eod=eod))


def test_counts_match_the_ledger(tmp_path):
    run = run_of(tmp_path, CHANGED + DENIED)
    found = made(ledger_section, target_of(run))
    words, ledger = words_of(found.html), run.ledger()
    tokens = ledger.total.as_json()["tokens"]
    assert f"Tokens by source, before position {run.num_samples:,}" in words
    assert f"tokens of started passes {tokens['offered']:,} 100%" in words
    for name, label in (("denied", "denied"), ("dropped_tail", "dropped tail"), ("not_reached", "not reached yet")):
        assert tokens[name]
        assert f"{label} {tokens[name]:,} " in words
    assert "Balance: 0 tokens and slots are unaccounted for." in words
    assert "not counted" not in words
    web = dict(ledger.sources)["web"]
    assert f"web {web.counts.samples:,} {web.offered:,} {web.counts.with_loss:,}" in words


def target(*words: str, length: int) -> Target:
    return open_target(list(words), settings=SampleSettings(sequence_length=length))


def test_fill_of_best_fit_packs_and_random_windows(write_pair):
    lengths = [3, 9, 4, 2, 0, 20]
    found = made(packing_section, target(write_pair(lengths), length=8))
    report = best_fit_report(np.array(lengths, dtype=np.int32), sequence_length=8)
    [chart] = found.charts
    fill, packs, windows = (dict(zip(chart.x, each.values, strict=True)) for each in chart.series)
    assert list(fill) == [2, 4, 8, 16, 32]
    assert fill[8] == report.fill
    assert packs[8] == 1 / 5
    assert windows[8] == pytest.approx((2 + 8 + 3 + 1 + 8) / 8 / 5)
    assert "8 (current)" in words_of(found.html)
    assert found.findings == []


def test_samples_and_passes_of_datasets(write_pair):
    small, large = write_pair([10] * 30, "small"), write_pair([10] * 270, "large")
    found = made(blend_section, target("50", small, "50", large, length=10))
    words = words_of(found.html)
    assert "Training over 300 samples of 10 tokens" in words
    assert f"{small} 300 50% 150 5.00" in words
    assert f"{large} 2,700 50% 150 0.56" in words
    assert found.findings == [f"{small} is read 5.0 times in as many samples as all tokens make."]
    [chart] = found.charts
    assert [(each.name, each.values[0]) for each in chart.series] == [(small, 0), (large, 0)]
    assert chart.series[0].values[1] == 5
    assert list(chart.x) == [0, 300]
