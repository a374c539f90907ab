"""A report as one page, and charts as data."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tokenloom.errors import DatasetFormatError
from tokenloom_look.report.page import page
from tokenloom_look.report.section import Chart, ReportOptions, Section, Series, kept_points
from tokenloom_look.report.sections import ListedSection, make_section
from tokenloom_look.target import TargetKind, open_target

HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e"


def chart(**changes) -> Chart:
    texts = {
        "id": "lengths",
        "title": "Lengths",
        "summary": "Most are short.",
        "x_label": "tokens",
        "y_label": "documents",
    }
    return Chart(**texts | {"kind": "bars", "x": [1, 10, 100], "series": [Series("documents", [4, 2])]} | changes)


@pytest.fixture
def target(write_pair):
    return open_target([write_pair([3])])


def text_of(target, *sections: Section, when: float | None = None) -> str:
    return page(target, sections, when=when).decode()


def test_a_page_has_a_title_and_contents(target):
    found = text_of(target, Section(id="one", title="One", html="<p>words</p>"), when=0.0)
    assert f"<h1>{target.name}</h1>" in found
    assert '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00 UTC</time>' in found
    assert '<li><a href="#one">One</a></li>' in found
    assert '<details><summary><h2 id="one">One</h2></summary><p>words</p></details>' in found


def test_findings_come_first_with_links(target):
    sections = [Section(id="one", title="One", html="", findings=["It is <odd>."])]
    found = text_of(target, *sections)
    assert '<li>It is &lt;odd&gt;. <a href="#one" class="where">One</a></li>' in found
    assert found.index(">Findings<") < found.index("Contents")
    assert "names one: tokens are shown as ids" in found  # a note of the target


def test_charts_have_data_and_a_sentence_for_those_without_scripts(target):
    found = text_of(target, Section(id="one", title="One", html="", charts=[chart(note="Some.")]))
    data = re.search(r'<figure class="chart"><script type="application/json">(.*?)</script></figure>', found)
    assert json.loads(data[1]) == chart(note="Some.").as_json()
    assert "<noscript><h3>Lengths</h3><p>Most are short.</p>" in found


def test_nothing_is_loaded_and_only_named_scripts_run(target):
    found = text_of(target, Section(id="one", title="One", html=""))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', found)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    body = re.sub(r"<(script|style)>.*?</\1>", "", found, flags=re.DOTALL)
    assert not re.search(r"\b(src|onclick|onload|action)=|https?:", body)


def test_a_failing_section_is_replaced_by_its_error(target):
    def fail(*_: object) -> Section:
        raise DatasetFormatError("`<b>` is damaged", hint="verify it")

    listed = ListedSection(id="one", title="One", kinds={TargetKind.pair}, make=fail)
    found = make_section(listed, target, ReportOptions())
    assert found.error == "`<b>` is damaged\nhint: verify it"
    assert found.section.html == (
        '<div class="error" role="note"><p><strong>This section failed. </strong>'
        "`&lt;b&gt;` is damaged</p><p>Hint: verify it</p></div>"
    )
    assert found.section.findings == ["One: this section failed: `<b>` is damaged"]


def test_non_finite_numbers_are_null():
    values = np.array([np.nan, np.inf, 1 / 3])
    found = chart(kind="lines", x=[0, 10, 20], series=[Series("web", values)])
    written = json.dumps(found.as_json()["series"], allow_nan=False)
    assert written == '[{"name": "web", "values": [null, null, 0.3333333]}]'


@given(
    ys=arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-9, 9) | st.just(float("nan"))),
    most=st.integers(4, 40),
)
def test_bounds_first_and_last_are_kept(ys: np.ndarray, most: int):
    xs = kept_points(ys, most=most)
    kept = ys[xs]
    assert len(xs) <= most
    assert (xs[0], xs[-1]) == (0, len(ys) - 1)
    assert (np.diff(xs) > 0).all()
    if not np.isnan(ys).all():
        assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(ys), np.nanmax(ys))
