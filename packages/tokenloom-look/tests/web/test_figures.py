"""A chart's data stand inside a page without being part of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom_look.report.page import figure_html

START, END = '<figure class="chart"><script type="application/json">', "</script></figure>"


@given(st.text() | st.sampled_from(["</script>", "<!--<script>", "]]>", "\u2028"]))
def test_any_text_comes_back_and_ends_no_element(text):
    html = figure_html({"title": text, "series": [{"name": text, "values": [1, None, 0.5]}]})
    assert html.startswith(START)
    assert html.endswith(END)
    inside = html[len(START) : -len(END)]
    assert "<" not in inside
    assert json.loads(inside) == {"title": text, "series": [{"name": text, "values": [1, None, 0.5]}]}


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(ValueError, match="Out of range float values"):
        figure_html({"values": [float("nan")]})
