"""Stages, blend, passes, and what a run never reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.report.pages import locked, made, target_of, words_of
from tests.run.folders import make_run
from tests.run.megatrons import make, opened
from tests.run.small_runs import pair, segment, source

from tokenloom.report.run_sections import held_out_section, passes_section, stages_section
from tokenloom.run.lock import LockedDenial, LockedSource

WEB, CODE = source("web", 80), source("code", 2)
TWO = [segment(0, 60, [1, 0]), segment(60, 40, [3, 1], stage="decay")]


def test_stages_are_told_and_the_blend_is_drawn():
    found = made(stages_section, locked([WEB, CODE], TWO))
    words = words_of(found.html)
    assert "positions 100 tokens of samples 1,000" in words
    assert "main 0 60 10 1 web 100%" in words
    assert "decay 60 40 10 2 web 75%, code 25%" in words
    [blend] = found.charts
    assert (blend.kind, blend.y_format) == ("stacked", "share")
    assert blend.summary == "Of all samples web 90%, code 10% come from the largest sources."
    assert [(mark.x, mark.label) for mark in blend.marks] == [(60, "decay")]
    web, code = (np.array(each.values) for each in blend.series)
    xs = np.array(blend.x)
    np.testing.assert_allclose(web + code, 1)
    assert (code[xs < 60] == 0).all()
    assert code[xs > 60].mean() == pytest.approx(0.25, abs=0.05)
    assert xs.tolist() == sorted(xs.tolist())
    assert code[xs == 60].tolist() == [0, code[xs == 60][1]]  # a step, not a slope


def test_steps_are_the_axis_where_samples_of_a_step_are_told():
    found = made(stages_section, locked([WEB, CODE], TWO), global_batch_size=10)
    [blend] = found.charts
    assert blend.x_label == "step"
    assert (blend.x[0], blend.x[-1]) == (0, 10)
    assert blend.marks[0].x == 6


def test_passes_are_drawn_and_repetition_is_told():
    found = made(passes_section, locked([WEB, CODE, source("idle", 3)], TWO))
    words = words_of(found.html)
    assert "web 1.12 1,602 900 700 2" in words
    assert "code 5.00 105 100 0 5" in words
    assert found.findings == ["code is read 5.0 times up to position 100.", "idle is in no sample of the run."]
    [passes] = found.charts
    assert [each.name for each in passes.series] == ["web", "code"]
    assert passes.series[1].values[-1] == 5
    assert passes.summary == "At the end the sources read most often have had code 5.00, web 1.12 passes."


def test_a_run_without_an_end_is_drawn_for_a_pass_and_says_so():
    target = locked([WEB, CODE], [segment(0, 60, [1, 0]), segment(60, None, [3, 1], stage="rest")])
    for section in (stages_section, passes_section):
        found = made(section, target)
        assert "The last stage has no end: it is drawn" in words_of(found.html)
        assert found.charts[0].x[-1] == 60 + 82


def test_caps_that_are_reached_are_told():
    sources = [WEB, source("code", 2, max_passes=2)]
    found = made(passes_section, locked(sources, [segment(0, 16, [3, 1])]))
    assert "Caps that are reached source most passes are read at position and then code 2 16 the run stops" in words_of(
        found.html
    )


def test_ten_thousand_sources_have_few_lines_and_rows():
    sources = [source(f"source {number}", 50) for number in range(10_000)]
    target = locked(sources, [segment(0, 10**9, [1 + number for number in range(10_000)])], block=1024)
    blend = made(stages_section, target)
    assert [each.name for each in blend.charts[0].series][-1] == "9,989 others"
    np.testing.assert_allclose(sum(np.array(each.values) for each in blend.charts[0].series), 1)
    passes = made(passes_section, target)
    assert words_of(passes.html).count("source ") <= 110
    assert "9,900 others" in words_of(passes.html)
    assert len(passes.findings) <= 6
    assert "9,988 are left out" in passes.charts[0].note


def test_names_of_sources_are_texts():
    name = '<img src=x onerror="alert(1)">\u202e'
    target = locked([source(name, 9)], [segment(0, 60, [1])])
    for section in (stages_section, passes_section):
        html = made(section, target).html
        assert "<img" not in html
        assert "\u202e" not in html


def test_what_is_held_out_and_denied():
    held = replace(pair(1000, name="a"), num_documents=1000, held_blocks=2, held_tokens=500)
    some = replace(pair(1000, name="b"), held_documents=7, held_tokens=90)
    denials = (LockedDenial(start=5, documents=((0, (1, 2, 3)),)),)
    sources = [LockedSource(name="web", pairs=(held,)), LockedSource(name="code", pairs=(some,)), WEB]
    found = made(held_out_section, locked(sources, [segment(0, 6, [1, 1, 1])], denials=denials))
    words = words_of(found.html)
    assert "web 512 500 50% code 7 90 9%" in words
    assert "5 3 web 3 In their places stands padding." in words
    assert made(held_out_section, locked([WEB], [segment(0, 6, [1])])) is None


def test_a_stored_order_is_not_computed_and_the_page_says_so(tmp_path):
    run = opened(make(tmp_path))
    before = sorted(tmp_path.iterdir())
    found = made(stages_section, target_of(run))
    assert "order the reference's" in words_of(found.html)
    assert "which is stored and not computed" in words_of(found.html)
    assert not found.charts
    assert made(passes_section, target_of(run)) is None
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_run_has_none_of_this():
    target = replace(locked([WEB], [segment(0, 6, [1])]), run=None)
    assert [made(each, target) for each in (stages_section, passes_section, held_out_section)] == [None] * 3


def test_a_run_in_a_folder(tmp_path):
    assert made(stages_section, target_of(make_run(tmp_path))).charts[0].series[0].name == "web"
