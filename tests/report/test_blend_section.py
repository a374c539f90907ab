"""What a build makes of a blend, as a report says it."""

from __future__ import annotations

from tests.report.pages import made, words_of

from tokenloom.inspect.target import SampleSettings, Target, open_target
from tokenloom.report.blend_section import blend_section


def target(*words: str) -> Target:
    return open_target(list(words), settings=SampleSettings(sequence_length=10))


def test_samples_and_passes_of_datasets(write_pair):
    small, large = write_pair([10] * 30, "small"), write_pair([10] * 270, "large")
    found = made(blend_section, target("50", small, "50", large))
    words = words_of(found.html)
    assert "over 300 samples of 10 tokens reads" in words
    assert f"{small} 300 50% 150 5.00" in words
    assert f"{large} 2,700 50% 150 0.56" in words
    assert found.findings == [f"{small} is read 5.0 times while the tokens of all data are read once."]
    [chart] = found.charts
    assert [(each.name, each.values[0]) for each in chart.series] == [(small, 0), (large, 0)]
    assert chart.series[0].values[1] == 5
    assert list(chart.x) == [0, 300]


def test_of_many_samples_some_are_counted(write_pair, monkeypatch):
    small, large = write_pair([10] * 30, "small"), write_pair([10] * 270, "large")
    monkeypatch.setattr("tokenloom.report.blend_section._MOST_SAMPLES", 100)
    words = words_of(made(blend_section, target("50", small, "50", large)).html)
    assert "Counted for 100 samples, and multiplied." in words
    assert f"{small} 300 50% 150 5.00" in words


def test_without_weights_each_is_read_once(write_pair):
    found = made(blend_section, target(write_pair([10] * 30, "small"), write_pair([10] * 270, "large")))
    assert "each dataset is read once" in words_of(found.html)
    assert list(found.charts) == []
    assert found.findings == []


def test_a_pair_is_no_blend(write_pair):
    assert made(blend_section, target(write_pair([1, 2]))) is None
