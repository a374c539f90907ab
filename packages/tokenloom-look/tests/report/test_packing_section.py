"""Fill, imbalance, and what a build makes of a blend."""

from __future__ import annotations

import numpy as np
import pytest
from report_pages import made, words_of

from tokenloom.order.packs import best_fit_report
from tokenloom_look.report.blend_section import blend_section
from tokenloom_look.report.packing_section import packing_section
from tokenloom_look.target import SampleSettings, Target, open_target

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


def blend_of(*words: str) -> Target:
    return open_target(list(words), settings=SampleSettings(sequence_length=10))


def test_samples_and_passes_of_datasets(write_pair):
    small, large = write_pair([10] * 30, "small"), write_pair([10] * 270, "large")
    found = made(blend_section, blend_of("50", small, "50", large))
    words = words_of(found.html)
    assert "over 300 samples of 10 tokens reads" in words
    assert f"{small} 300 50% 150 5.00" in words
    assert f"{large} 2,700 50% 150 0.56" in words
    assert found.findings == [f"{small} is read 5.0 times while the tokens of all data are read once."]
    [chart] = found.charts
    assert [(each.name, each.values[0]) for each in chart.series] == [(small, 0), (large, 0)]
    assert chart.series[0].values[1] == 5
    assert list(chart.x) == [0, 300]
