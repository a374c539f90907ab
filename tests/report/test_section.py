"""Sections and charts as data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenloom.report.section import Chart, Mark, Section, Series


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


def test_values_of_x_may_have_a_unit():
    assert chart(x_unit="tokens").as_json()["x"] == {
        "label": "position",
        "scale": "linear",
        "values": [0, 10, 20],
        "unit": "tokens",
    }


def test_what_is_no_number_is_null():
    values = np.array([np.nan, np.inf, 1 / 3])
    written = json.dumps(chart(series=[Series("web", values)]).as_json()["series"], allow_nan=False)
    assert written == '[{"name": "web", "values": [null, null, 0.3333333]}]'


def test_what_has_no_logarithm_is_a_gap_on_a_log_scale():
    made = chart(
        x=[0, 1, 8], x_scale="log", y_scale="log", series=[Series("a", [1, 0, -4]), Series("b", [0.0, 2.5, 1])]
    )
    shown = made.as_json()
    assert shown["x"]["values"] == [0, 1, 8]
    assert [each["values"] for each in shown["series"]] == [[1, None, None], [None, 2.5, 1]]


def test_positions_of_long_runs_keep_their_digits():
    assert chart(x=np.array([0, 1, 10**15 + 1])).as_json()["x"]["values"] == [0, 1, 10**15 + 1]
    assert chart(x=np.array([0.0, 1.0, 1e15 + 1])).as_json()["x"]["values"] == [0, 1, 10**15 + 1]


def test_many_points_are_thinned_and_the_note_says_so():
    values = np.zeros(5000)
    values[1234] = 1.0
    shown = chart(x=np.arange(5000), series=[Series("web", values)], note="Exact.").as_json(most=100)
    assert len(shown["x"]["values"]) == len(shown["series"][0]["values"]) <= 100
    assert 1 in shown["series"][0]["values"]
    assert shown["note"].startswith("Exact. ")
    assert "of 5,000 points are drawn" in shown["note"]


def test_a_cloud_is_thinned_evenly_and_bars_stay():
    shown = chart(kind="points", x=np.arange(9), series=[Series("web", np.arange(9))]).as_json(most=3)
    assert shown["x"]["values"] == [0, 4, 8]
    bars = chart(kind="bars", x=np.arange(10), series=[Series("web", np.arange(9))]).as_json(most=3)
    assert len(bars["x"]["values"]) == 10
    assert bars["note"] == ""


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_a_value_belongs_to_every_x(kind: str):
    with pytest.raises(AssertionError, match="web has not"):
        chart(kind=kind, series=[Series("web", [1.0])])


def test_a_section_as_json_has_its_charts():
    made = Section(id="run", title="The run", html="<p>words</p>", charts=[chart()], findings=["It is odd."])
    assert made.as_json() == {
        "id": "run",
        "title": "The run",
        "html": "<p>words</p>",
        "charts": [chart().as_json()],
        "findings": ["It is odd."],
    }
