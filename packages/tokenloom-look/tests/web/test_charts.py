"""Charts in a real browser: all kinds, by day and night and on paper, by keyboard, as tables, of a million points."""

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
def test_all_kinds_look_well_and_can_be_read_by_all(pages, drawn, look):
    page = drawn(*gallery(), **LOOKS[look])
    assert page.locator(".uplot canvas").count() == len(gallery()) - 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.picture(page, f"charts-{look}")
    if look in ("light", "dark"):
        pages.check_accessible(page)


def test_keys_read_values_aloud(drawn):
    page = drawn(
        chart(
            x=[0, 10, 20, 30],
            series={"a": [1, 2.5, np.nan, 4], "b": [1e6, 0, 2, 3]},
            marks=[{"x": 15, "label": "main"}],
        )
    )
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


def test_zoom_by_keys_by_mouse_and_back(drawn):
    page = drawn(chart(x=np.arange(101), series={"a": np.arange(101) % 7}))
    plot, back = page.get_by_role("application"), page.get_by_role("button", name="Show all")
    view = "() => [...tokenloomCharts.of(document.querySelector('.chart')).view]"
    plot.press("+")
    assert page.evaluate(view) == [25, 75]
    assert back.is_visible()
    plot.press("0")
    assert page.evaluate(view) == [0, 100]
    assert not back.is_visible()
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=3)
    page.mouse.up()
    assert page.evaluate(view) == pytest.approx([20, 60], abs=1)
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    assert page.locator(".chart-readout").text_content() == "position: 40"
    back.click()
    assert page.evaluate(view) == [0, 100]


def test_a_table_has_the_numbers(drawn):
    page = drawn(
        chart(x=np.arange(1000), series={"a": np.arange(1000) / 1000, "b": np.full(1000, np.nan)}, y_format="share")
    )
    assert page.get_by_role("table").count() == 0
    open_table(page)
    rows = page.get_by_role("row").all_text_contents()
    assert len(rows) == 101
    assert (rows[0], rows[1], rows[2], rows[-1]) == ("positionab", "00%\u2013", "101%\u2013", "99999.9%\u2013")
    assert page.get_by_role("caption").text_content() == "A chart of lines: 100 of 1,000 rows"


MILLION = """(kind) => {
  const number = 1_000_000, x = [], y = [];
  let noise = 7;
  for (let i = 0; i < number; i++) {
    noise = (noise * 48271) % 2147483647;
    x.push(i);
    y.push(1 + noise / 2147483647);
  }
  y[617_283] = 9;
  y[617_284] = null;
  const drawn = tokenloomCharts.draw(document.querySelector("main"), {
    id: "million", kind, title: "A million points", summary: "One stands out.", marks: [],
    x: {label: "step", scale: "linear", values: x}, y: {label: "loss", scale: "linear", format: "number"},
    series: [{name: "loss", values: y}],
  });
  window.million = drawn;
  const [, values] = drawn.plot.data;
  return [values.reduce((most, value) => Math.max(most, value), 0), values.length, values.includes(null)];
}"""


def test_of_a_million_points_the_one_that_stands_out_is_drawn(pages, drawn):
    page = drawn()
    greatest, number, has_gap = page.evaluate(MILLION, "lines")
    assert greatest == 9
    assert number < 6000
    assert has_gap
    page.evaluate("() => million.show(617_200, 617_400)")
    assert 190 < page.evaluate("() => million.plot.data[0].length") < 210
    page.evaluate("() => million.show(...million.whole)")
    pages.picture(page, "charts-million")


ODD = {
    "one point": chart(x=[5], series={"a": [3]}),
    "one bar": chart("bars", x=[5, 6], series={"a": [3]}),
    "all the same": chart(x=[1, 2, 3], series={"a": [7, 7, 7]}),
    "only gaps": chart(x=[1, 2], series={"a": [np.nan, np.nan]}),
    "no series": chart(x=[1, 2], series={}),
    "nothing above 0": chart(x=[-1, 0], series={"a": [0, -1]}, x_scale="log", y_scale="log"),
    "some above 0": chart(x=[0, 1, 10], series={"a": [0, 0, 3]}, x_scale="log", y_scale="log"),
    "negative": chart(x=[-3, 4], series={"a": [-5, -2]}, y_format="count"),
    "tiny and huge": chart(x=[1e-300, 1e300], series={"a": [1e-300, 1e300]}, x_scale="log", y_scale="log"),
    "huge": chart(x=[0, 2**60], series={"a": [0, 2**63]}, y_format="tokens"),
    "not in order": chart(x=[3, 1, 2], series={"a": [30, 10, 20]}),
    "zeros on top of each other": chart("stacked", x=[0, 1], series={"a": [0, 0], "b": [0, np.nan]}, y_format="share"),
    "40 lines": chart(x=[0, 1], series={f"s{n}": [n, n + 1] for n in range(40)}),
    "bars without height": chart("bars", x=[0, 1, 2], series={"a": [0, 0]}, x_scale="log", y_scale="log"),
}


def test_odd_data_are_drawn_or_said_to_be_nothing(drawn):
    page = drawn(*[{**each, "title": name} for name, each in ODD.items()])
    empty = page.locator(".chart:has(.chart-plot.empty) .chart-title").all_text_contents()
    assert empty == ["only gaps", "no series", "nothing above 0", "bars without height"]
    page.evaluate(
        """() => { for (const plot of document.querySelectorAll(".chart-plot"))
          for (const key of ["ArrowRight", "ArrowLeft", "+", "End", "-", "Home", "0", "PageDown", "Escape"])
            plot.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }"""
    )
    ordered = page.locator(".chart").nth(list(ODD).index("not in order"))
    open_table(ordered)
    assert ordered.get_by_role("row").all_text_contents() == ["positiona", "110", "220", "330"]
    note = page.locator(".chart").nth(list(ODD).index("40 lines")).locator(".note")
    assert note.text_content() == "29 series are drawn alike, in grey."


def test_names_are_texts_and_nothing_else(drawn):
    evil = "<img src=x onerror=\"document.title='gone'\"></script><script>document.title='gone'</script>"
    page = drawn(
        chart(
            x=[0, 1],
            series={evil: [1, 2]},
            title=evil,
            summary=evil,
            note=evil,
            x_label=evil,
            y_label=evil,
            marks=[{"x": 0, "label": evil}],
        )
    )
    open_table(page)
    page.get_by_role("application").press("ArrowRight")
    assert page.title() == "Charts"
    assert page.locator("img").count() == 0
    assert page.locator(".chart-title").text_content() == evil
    assert page.get_by_role("columnheader").all_text_contents() == [evil, evil]


NUMBERS = {
    "ticks([0, 250000, 500000], 'count', false)": ["0", "250 k", "500 k"],
    "ticks([0, 2e12], 'tokens', false)": ["0", "2 T"],
    "ticks([0, 500, 1000], 'count', false)": ["0", "500", "1,000"],
    "ticks([0.8, 0.825, 0.85], 'number', false)": ["0.800", "0.825", "0.850"],
    "ticks([0, 0.25], 'share', false)": ["0%", "25%"],
    "ticks([0, 0.0005], 'share', false)": ["0%", "0.05%"],
    "ticks([0, 1800, 3600, 7200], 'seconds', false)": ["0", "0.5 h", "1.0 h", "2.0 h"],
    "ticks([1e-5, null, 1, 3e9], 'number', true)": ["1e\u22125", "", "1", "3 B"],
    "ticks([-2, -1], 'number', false)": ["\u22122", "\u22121"],
    "ticks([], 'number', false)": [],
    "exact(1234567, 'count')": "1,234,567",
    "exact(2.345678, 'number')": "2.3457",
    "exact(0.123456, 'share')": "12.35%",
    "exact(0.5, 'seconds')": "500 ms",
    "exact(0, 'seconds')": "0",
    "exact(null, 'count')": "\u2013",
    "exact(-0.25, 'number')": "\u22120.25",
    "exact(1e21, 'tokens')": "1e21",
    "short(1234567, 'count')": "1.23 M",
    "short(0.00000123, 'seconds')": "1.23 µs",
}


def test_numbers_are_short_on_axes_and_exact_at_the_cursor(drawn):
    page = drawn()
    found = page.evaluate(
        "calls => { const {ticks, exact, short} = tokenloomChartNumbers; return ["
        + ",".join(f"() => {call}" for call in NUMBERS)
        + "].map(call => call()) }",
        None,
    )
    plain = [
        [text.replace("\u202f", " ") for text in each] if isinstance(each, list) else each.replace("\u202f", " ")
        for each in found
    ]
    assert dict(zip(NUMBERS, plain, strict=True)) == NUMBERS
