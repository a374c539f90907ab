"""Reports in a real browser: by day, by night, on paper, without scripts; hostile data do nothing to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.browser.fixtures import PICTURES
from tests.corpus.jobs import preprocess

from tokenloom import Run, load_tokenizer
from tokenloom.cli import main

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


def write_corpus(folder: Path, name: str, *, num_documents: int = 400) -> str:
    """Writes a corpus of hostile records in a file with a hostile name; returns the prefix of the pair."""
    rng = np.random.default_rng(7)
    sizes = np.clip(rng.lognormal(2.5, 1.2, num_documents), 1, 3000).astype(int)
    texts = [*HOSTILE, *(" ".join(["the words of a document are many"] * int(size)) for size in sizes)]
    lines = [json.dumps({"text": text}) for text in texts] + [json.dumps({each: 1}) for each in HOSTILE] + ["{\x1b<b>"]
    path = folder / f"{name} <img src=x onerror=document.title='taken'> \u202e.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"append_eod": True, "skip_bad_records": True, "num_workers": 1}
    preprocess(path, folder / f"{name}<b>", load_tokenizer("byte"), **settings)
    return f"{folder}/{name}<b>_text_document"


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Path:
    """A report on a corpus of hostile records."""
    folder = tmp_path_factory.mktemp("hostile")
    prefix = write_corpus(folder, "corpus")
    words = ["--tokenizer", "byte", "--sequence-length", "512", "--no-time", "--num-samples-shown", "2"]
    assert main(["report", prefix, "-o", str(folder / "report.html"), *words]) == 0
    return folder / "report.html"


@pytest.mark.parametrize("look", LOOKS)
def test_a_report_looks_well_and_can_be_read_by_all(pages, reported, look):
    page = pages.open(reported, **LOOKS[look])
    assert page.locator(".uplot canvas").count() == page.locator("figure.chart").count() > 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.picture(page, f"report-{look}")
    if look in ("light", "dark"):
        pages.check_accessible(page)


def test_hostile_data_are_texts_and_nothing_is_asked_for(pages, reported):
    page = pages.open(reported)
    assert page.title().endswith("corpus<b>_text_document - tokenloom report")
    assert page.locator("img, iframe, object, embed, form, base, b, link").count() == 0
    shown = page.locator("main").inner_text()
    assert "<script>document.title = 'taken'</script>" in shown
    assert "\\u202e" in shown
    assert not {"\x1b", "\x00", "\u202e", "\u200b", "\x9b", "\u2028"} & set(page.content())
    assert [address for address in pages.requests if not address.startswith(("file:", "data:"))] == []


def test_paper_has_all_sections(pages, reported):
    page = pages.open(reported)
    path = PICTURES / "report.pdf"
    page.pdf(path=path, prefer_css_page_size=True)
    assert path.read_bytes().count(b"/Type /Page\n") >= 3
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    for title in ("Documents and tokens", "What became of the input", "Some samples", "Some documents"):
        assert page.get_by_role("heading", name=title, exact=True).is_visible()


def test_without_scripts_words_tables_and_sentences_on_charts_are_there(chromium, reported):
    context = chromium.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(reported.as_uri())
        assert page.get_by_role("heading", name="Lengths of documents").is_visible()
        assert "Half of the documents have at most" in page.locator("main").inner_text()
        assert page.locator("canvas").count() == 0
        assert page.get_by_role("row", name="longest document").is_visible()
    finally:
        context.close()


def test_links_lead_to_sections(pages, reported):
    page = pages.open(reported)
    page.locator("nav").get_by_role("link", name="The tokens").click()
    assert page.evaluate("location.hash") == "#tokens"
    assert page.get_by_role("heading", name="The tokens").is_visible()
    page.locator(".findings").get_by_role("link", name="What became of the input").click()
    assert page.evaluate("location.hash") == "#input"


def test_a_run_looks_well(pages, tmp_path):
    one, two = write_corpus(tmp_path, "web"), write_corpus(tmp_path, "books", num_documents=100)
    path = tmp_path / "run.toml"
    path.write_text(
        f"order = 1\nseed = 3\n[sources]\n\"web<i>\" = '{one}'\nbooks = '{two}'\n"
        '[[stages]]\nsequence_length = 128\nsamples = 600\nweights = { "web<i>" = 3, books = 1 }\n'
        '[[stages]]\nsequence_length = 128\nsamples = 300\nweights = { "web<i>" = 1, books = 1 }\n'
    )
    Run.open(str(path), tokenizer=load_tokenizer("byte"))
    words = ["--no-time", "--num-samples-shown", "1", "--global-batch-size", "8", "--tokenizer", "byte"]
    assert main(["report", str(path), "-o", str(tmp_path / "run.html"), *words]) == 0
    page = pages.open(tmp_path / "run.html")
    assert page.locator("i").count() == 0
    assert page.get_by_role("heading", name="Stages and blend").is_visible()
    pages.check_accessible(page)
    pages.picture(page, "report-run")
