"""Charts and reports in a browser: colour schemes, print, keyboard, tables, no scripts, hostile data."""

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.jobs import preprocess

from tokenloom import load_tokenizer
from tokenloom.cli import main
from tokenloom_look.html import escaped
from tokenloom_look.report.page import figure_html
from tokenloom_look.web.assets import SCRIPTS, STYLES, asset, policy_of_file

pytestmark = pytest.mark.slow


def page_of(charts: Sequence[dict[str, Any]], path: Path) -> Path:
    """Writes a self-contained page with the security policy of reports."""
    scripts, styles = [asset(name) for name in SCRIPTS], [asset(name) for name in STYLES]
    policy = escaped(policy_of_file(scripts=scripts, styles=styles))
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{''.join(f'<style>{style.text}</style>' for style in styles)}</head><body><main><h1>Charts</h1>"
        f'<div class="charts">{"".join(map(figure_html, charts))}</div></main>'
        f"{''.join(f'<script>{script.text}</script>' for script in scripts)}</body></html>",
        encoding="utf-8",
    )
    return path


def chart(kind: str = "lines", *, x: Any, series: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Returns a chart as JSON; other arguments are axis settings such as `x_scale`, or members of the chart."""
    y = {"label": "value", "scale": "linear", "format": "number"}
    axes = {"x": {"label": "position", "scale": "linear"}, "y": y}
    for name in [name for name in others if name[:2] in ("x_", "y_")]:
        axes[name[0]][name[2:]] = others.pop(name)
    axes["x"]["values"] = listed(x)
    texts = {"id": kind, "title": f"A chart of {kind}", "summary": "A summary."}
    lines = [{"name": name, "values": listed(values)} for name, values in series.items()]
    return {"kind": kind, **texts, **axes, "series": lines, "marks": [], **others}


def listed(values: Any) -> list[Any]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in np.asarray(values).tolist()]


def gallery() -> list[dict[str, Any]]:
    """Returns charts of all kinds, like those of a report."""
    rng = np.random.default_rng(5)
    steps = np.arange(0, 2_400_000, 12_000)
    web = np.linspace(0.7, 0.4, len(steps))
    blend = {"fineweb-edu": web, "the-stack-v2": (1 - web) * 0.6, "arxiv": (1 - web) * 0.4}
    edges = [0, *(2**power for power in range(20))]
    lengths = [0, *(round(4e6 * math.exp(-((power - 9.5) ** 2) / 9)) for power in range(19))]
    loss = 2.1 + 8 * np.exp(-np.linspace(0, 6, 600)) + rng.normal(size=600) * 0.03
    loss[100:130] = math.nan
    stages = [{"x": 0, "label": "warm-up"}, {"x": 600_000, "label": "main"}, {"x": 1_900_000, "label": "anneal"}]
    waits = {"wait for data": np.geomspace(1e-5, 4e3, 40), "step": np.full(40, 0.8)}
    logarithmic = {"x_scale": "log", "y_scale": "log", "y_format": "seconds"}
    return [
        chart("stacked", x=steps, series=blend, y_format="share", marks=stages, title="Blend"),
        chart("bars", x=edges, series={"documents": lengths}, x_scale="log", y_format="count", note="Some are empty."),
        chart("lines", x=np.arange(600) * 50, series={"loss": loss}, title="Loss", x_label="step"),
        chart("lines", x=np.geomspace(1e-3, 1e3, 40), series=waits, id="waits", title="Waits", **logarithmic),
        chart("lines", x=[], series={"nothing": []}, id="empty", title="Nothing"),
    ]


LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390, "height": 844},
    "print": {"media": "print", "width": 680},
}


@pytest.fixture
def drawn(pages, tmp_path):
    """Opens a page with charts, drawn."""
    return lambda *charts, **window: pages.open(page_of(charts, tmp_path / "page.html"), **window)


def open_table(where):
    where.get_by_text("Show as table").click()
    where.get_by_role("table").wait_for()


def check_look(pages, page, name: str, look: str) -> None:
    """Checks the width of a page and that it is accessible, and takes a picture."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.picture(page, f"{name}-{look}")
    if look in ("light", "dark"):
        pages.check_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
def test_all_kinds_of_charts_are_drawn_and_accessible(pages, drawn, look):
    page = drawn(*gallery(), **LOOKS[look])
    assert page.locator(".uplot canvas").count() == len(gallery()) - 1
    check_look(pages, page, "charts", look)


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


HOSTILE = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\"></p></main></body>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200bhidden\ufeff",
    "nul \x00 and \x7f and \x85 and \u2028",
    "</script><!-- {{constructor.constructor('x')()}} ${7*7} &lt;b&gt; &#x3c;b> javascript:alert(1)",
    "漢字 русский עברית العربية हिन्दी 😀 e\u0301",
)


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Path:
    """Returns the report of a corpus of hostile records."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(7)
    sizes = np.clip(rng.lognormal(2.5, 1.2, 400), 1, 3000).astype(int)
    texts = [*HOSTILE, *(" ".join(["the words of a document are many"] * int(size)) for size in sizes)]
    lines = [json.dumps({"text": text}) for text in texts] + [json.dumps({each: 1}) for each in HOSTILE] + ["{\x1b<b>"]
    path = folder / "corpus <img src=x onerror=document.title='taken'> \u202e.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"append_eod": True, "skip_bad_records": True, "num_workers": 1}
    preprocess(path, folder / "corpus<b>", load_tokenizer("byte"), **settings)
    words = ["--tokenizer", "byte", "--sequence-length", "512", "--no-time", "--num-samples-shown", "2"]
    assert main(["report", f"{folder}/corpus<b>_text_document", "-o", str(folder / "report.html"), *words]) == 0
    return folder / "report.html"


@pytest.mark.parametrize("look", LOOKS)
def test_a_report_is_accessible(pages, reported, look):
    page = pages.open(reported, **LOOKS[look])
    assert page.locator(".uplot canvas").count() == page.locator("figure.chart").count() > 1
    check_look(pages, page, "report", look)


def test_hostile_data_are_escaped_and_nothing_is_requested(pages, reported):
    page = pages.open(reported)
    assert page.title().endswith("corpus<b>_text_document - tokenloom report")
    assert page.locator("img, iframe, object, embed, form, base, b, link").count() == 0
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    shown = page.locator("main").inner_text()
    assert "<script>document.title = 'taken'</script>" in shown
    assert "\\u202e" in shown
    assert not {"\x1b", "\x00", "\u202e", "\u200b", "\x9b", "\u2028"} & set(page.content())
    assert [address for address in pages.requests if not address.startswith(("file:", "data:"))] == []


def test_a_report_is_complete_without_scripts(chromium, reported):
    with chromium.driven() as browser, contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(reported.as_uri())
        assert page.get_by_role("heading", name="Lengths of documents").is_visible()
        assert "Half of the documents have at most" in page.locator("main").inner_text()
        assert page.locator("canvas").count() == 0
        page.get_by_text("Numbers", exact=True).first.click()
        assert page.get_by_role("row", name="longest document").is_visible()
