"""Sections and charts as data, and shares and durations in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tokenloom_look.report.section import Chart, Mark, Series
from tokenloom_look.report.thinning import thinned
from tokenloom_look.report.words import duration, share


def chart(**changes) -> Chart:
    given = {
        "id": "passes",
        "kind": "lines",
        "title": "Passes",
        "summary": "web is read once.",
        "x_label": "position",
        "x": [0, 10, 20],
        "y_label": "passes",
        "series": [Series("web", [0.0, 0.5, 1.0])],
    }
    return Chart(**{**given, **changes})


def test_a_chart_as_json_is_what_pages_read():
    made = chart(x=np.array([0, 10, 20]), marks=[Mark(10, "decay")], note="Exact.", y_format="number")
    assert made.as_json() == {
        "id": "passes",
        "kind": "lines",
        "title": "Passes",
        "summary": "web is read once.",
        "x": {"label": "position", "scale": "linear", "values": [0, 10, 20]},
        "y": {"label": "passes", "scale": "linear", "format": "number"},
        "series": [{"name": "web", "values": [0, 0.5, 1]}],
        "marks": [{"x": 10, "label": "decay"}],
        "note": "Exact.",
    }


def test_what_is_no_number_is_null():
    values = np.array([np.nan, np.inf, 1 / 3])
    written = json.dumps(chart(series=[Series("web", values)]).as_json()["series"], allow_nan=False)
    assert written == '[{"name": "web", "values": [null, null, 0.3333333]}]'


def test_every_stretch_keeps_its_least_and_greatest_value():
    ys = np.array([5, 1, 9, 5, 5, 5, 7, 2, 5, 5])
    xs, kept = thinned(np.arange(10), ys, most=6)
    assert xs.tolist() == [0, 1, 2, 6, 7, 9]
    assert kept.tolist() == [5, 1, 9, 7, 2, 5]


@given(
    ys=arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-9, 9) | st.just(float("nan"))),
    most=st.integers(4, 40),
)
def test_bounds_first_and_last_are_kept(ys: np.ndarray, most: int):
    xs, kept = thinned(np.arange(len(ys)), ys, most=most)
    assert len(xs) <= most
    assert (xs[0], xs[-1]) == (0, len(ys) - 1)
    assert (np.diff(xs) > 0).all()
    np.testing.assert_array_equal(kept, ys[xs])
    if not np.isnan(ys).all():
        assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(ys), np.nanmax(ys))


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 0, "0%"), (0, 5, "0%"), (5, 5, "100%"), (1, 8, "12.5%"), (1, 10**9, "<0.1%"), (10**9 - 1, 10**9, ">99.9%")],
)
def test_shares_are_not_rounded_to_nothing_or_all(part, whole, words):
    assert share(part, whole) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0.0 s"), (59, "59 s"), (61, "1 min"), (5400, "1.5 h"), (3 * 86400, "3.0 days")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words
