"""Charts in a browser: all kinds and colour schemes, keyboard, tables, hostile names."""

from __future__ import annotations

import numpy as np
import pytest
from chart_pages import chart, gallery, page_of

pytestmark = pytest.mark.slow

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390, "height": 844},
    "print": {"media": "print", "width": 680},
}


@pytest.fixture
def drawn(pages, tmp_path):
    """Opens a page with charts, drawn."""

    def opened(*charts, **window):
        return pages.open(page_of(charts, tmp_path / "page.html"), **window)

    return opened


def open_table(where):
    where.get_by_text("Show as table").click()
    where.get_by_role("table").wait_for()


@pytest.mark.parametrize("look", LOOKS)
def test_all_kinds_of_charts_are_drawn_and_accessible(pages, drawn, look):
    page = drawn(*gallery(), **LOOKS[look])
    assert page.locator(".uplot canvas").count() == len(gallery()) - 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.picture(page, f"charts-{look}")
    if look in ("light", "dark"):
        pages.check_accessible(page)


def test_keys_read_values_aloud(drawn):
    series = {"a": [1, 2.5, np.nan, 4], "b": [1e6, 0, 2, 3]}
    page = drawn(chart(x=[0, 10, 20, 30], series=series, marks=[{"x": 15, "label": "main"}]))
    plot, said = page.get_by_role("application"), page.get_by_role("status")
    plot.focus()
    heard = []
    for key in ("ArrowRight", "ArrowRight", "PageDown", "End", "ArrowRight", "Home", "ArrowLeft"):
        plot.press(key)
        heard.append(said.text_content())
    assert heard == [
        "position: 0; a: 1; b: 1,000,000",
        "position: 10; a: 2.5; b: 0",
        "position: 20 (main); a: \u2013; b: 2",
        *["position: 30 (main); a: 4; b: 3"] * 2,
        *["position: 0; a: 1; b: 1,000,000"] * 2,
    ]
    assert page.locator(".chart-legend .value").all_text_contents() == ["1", "1,000,000"]
    assert page.locator(".chart-readout").text_content() == "position: 0"
    plot.press("Escape")
    assert said.text_content() == ""
    assert page.locator(".chart-readout").text_content() == ""


def test_a_table_has_the_numbers(drawn):
    series = {"a": np.arange(1000) / 1000, "b": np.full(1000, np.nan)}
    page = drawn(chart(x=np.arange(1000), series=series, y_format="share"))
    assert page.get_by_role("table").count() == 0
    open_table(page)
    rows = page.get_by_role("row").all_text_contents()
    assert len(rows) == 101
    assert (rows[0], rows[1], rows[2], rows[-1]) == ("positionab", "00%\u2013", "101%\u2013", "99999.9%\u2013")
    assert page.get_by_role("caption").text_content() == "A chart of lines: 100 of 1,000 rows"


def test_names_are_escaped(drawn):
    evil = "<img src=x onerror=\"document.title='gone'\"></script><script>document.title='gone'</script>"
    texts = dict.fromkeys(("title", "summary", "note", "x_label", "y_label"), evil)
    page = drawn(chart(x=[0, 1], series={evil: [1, 2]}, marks=[{"x": 0, "label": evil}], **texts))
    open_table(page)
    page.get_by_role("application").press("ArrowRight")
    assert page.title() == "Charts"
    assert page.locator("img").count() == 0
    assert page.locator(".chart-title").text_content() == evil
    assert page.get_by_role("columnheader").all_text_contents() == [evil, evil]
