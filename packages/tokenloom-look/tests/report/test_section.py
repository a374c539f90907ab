"""Sections and charts as data, and shares and durations in words."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tokenloom_look.report.section import Chart, Series
from tokenloom_look.report.thinning import thinned


def test_what_is_no_number_is_null():
    values = np.array([np.nan, np.inf, 1 / 3])
    chart = Chart(
        id="passes",
        kind="lines",
        title="",
        summary="",
        x_label="",
        x=[0, 10, 20],
        y_label="",
        series=[Series("web", values)],
    )
    written = json.dumps(chart.as_json()["series"], allow_nan=False)
    assert written == '[{"name": "web", "values": [null, null, 0.3333333]}]'


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
