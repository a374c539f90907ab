"""Reports in a browser: colour schemes, print, no scripts, hostile data."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import preprocess

from tokenloom import load_tokenizer
from tokenloom.cli import main

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\"></p></main></body>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200bhidden\ufeff",
    "nul \x00 and \x7f and \x85 and \u2028",
    "</script><!-- {{constructor.constructor('x')()}} ${7*7} &lt;b&gt; &#x3c;b> javascript:alert(1)",
    "漢字 русский עברית العربية हिन्दी 😀 e\u0301",
)
LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390, "height": 844},
    "print": {"media": "print", "width": 680},
}


def write_corpus(folder: Path, name: str) -> str:
    """Writes a corpus of hostile records; returns the prefix of the pair."""
    rng = np.random.default_rng(7)
    sizes = np.clip(rng.lognormal(2.5, 1.2, 400), 1, 3000).astype(int)
    texts = [*HOSTILE, *(" ".join(["the words of a document are many"] * int(size)) for size in sizes)]
    lines = [json.dumps({"text": text}) for text in texts] + [json.dumps({each: 1}) for each in HOSTILE] + ["{\x1b<b>"]
    path = folder / f"{name} <img src=x onerror=document.title='taken'> \u202e.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"append_eod": True, "skip_bad_records": True, "num_workers": 1}
    preprocess(path, folder / f"{name}<b>", load_tokenizer("byte"), **settings)
    return f"{folder}/{name}<b>_text_document"


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    prefix = write_corpus(folder, "corpus")
    words = ["--tokenizer", "byte", "--sequence-length", "512", "--no-time", "--num-samples-shown", "2"]
    assert main(["report", prefix, "-o", str(folder / "report.html"), *words]) == 0
    return folder / "report.html"


@pytest.mark.parametrize("look", LOOKS)
def test_a_report_is_accessible(pages, reported, look):
    page = pages.open(reported, **LOOKS[look])
    assert page.locator(".uplot canvas").count() == page.locator("figure.chart").count() > 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.picture(page, f"report-{look}")
    if look in ("light", "dark"):
        pages.check_accessible(page)


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
