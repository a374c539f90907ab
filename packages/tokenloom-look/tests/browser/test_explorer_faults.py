"""Faults on the explorer's page: hostile texts, errors."""

from __future__ import annotations

import re
import threading

import pytest
from explorer_requests import serving
from playwright.sync_api import expect

from tokenloom.errors import DatasetFormatError
from tokenloom_look.explorer.application import views_of

pytestmark = pytest.mark.slow

CONTROLS = re.compile("[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def check_harmless(page) -> None:
    """Checks that no text was run, became an element, or has control characters."""
    assert page.evaluate("globalThis.owned") is None
    assert page.locator("main script, main img, main style, main iframe").count() == 0
    texts = page.evaluate(
        """() => [document.title, document.body.innerText,
          ...[...document.querySelectorAll("[title], [aria-label]")].map((each) => each.title + each.ariaLabel)]"""
    )
    assert not [text for text in texts if CONTROLS.search(text)]


def test_hostile_texts_are_escaped_in_every_view(pages, explorer):
    page = pages.open(explorer.server.url)
    for address, text in (
        ("documents", "<script>globalThis.owned"),
        ("documents?source=0&document=3", "</style>"),
        ("samples", None),
        ("search?text=globalThis", "<script>"),
        ("search?text=<img src=x onerror='globalThis.owned = 2'>", None),
        ("documents?source=0&document=3&start=2&length=4", None),
    ):
        page.evaluate("address => { location.hash = `#/${address}` }", address)
        expect(page.locator("main .waiting, main [aria-busy=true]")).to_have_count(0)
        if text is not None:
            expect(page.locator("main")).to_contain_text(text)
        check_harmless(page)
    read = explorer("occurrences", source=0, document=3)["rows"][0]["position"]
    page.evaluate("position => { location.hash = `#/samples?position=${position}` }", read)
    expect(page.locator(".detail")).to_contain_text("<script>globalThis.own")
    check_harmless(page)
    pages.picture(page, "explorer-hostile", whole=False)


def test_errors_are_shown_and_can_be_retried(pages, explored):
    broken = threading.Event()
    broken.set()
    views = views_of(explored.run(consumed=240))
    positions = views["positions"]

    def failing(query):
        if broken.is_set():
            raise DatasetFormatError("`web.bin` ends early", hint="verify it: `tokenloom verify web`")
        return positions(query)

    pages.expect_complaint("500")
    with serving({**views, "positions": failing}) as asker:
        page = pages.open(f"{asker.server.url}")
        page.get_by_role("link", name="Samples", exact=True).click()
        error = page.get_by_role("alert").filter(has_text="web.bin")
        expect(error).to_contain_text("tokenloom verify web")
        broken.clear()
        error.get_by_role("button", name="Try again").click()
        expect(error).to_have_count(0)
        expect(page.locator(".list [aria-rowindex='2']")).to_contain_text("web")
