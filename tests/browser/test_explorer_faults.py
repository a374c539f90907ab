"""What goes wrong on the explorer's page: hostile texts, errors, a server that is gone, data without a tokenizer."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading

from playwright.sync_api import expect

from tests.browser.explored import OWNED, preprocess
from tests.explorer.asking import serving
from tests.support import write_corpus
from tokenloom.errors import DatasetFormatError
from tokenloom.explorer.server import LocalServer
from tokenloom.explorer.views import views_of

TURNING = re.compile("[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn a page around, drive a terminal, or have no glyph."""


def check_harmless(page) -> None:
    """Checks that no text of the data was run, became an element, or turns the page around."""
    assert page.evaluate("globalThis.owned") is None
    assert page.locator("main script, main img, main style, main iframe").count() == 0
    said = page.evaluate(
        """() => [document.title, document.body.innerText,
          ...[...document.querySelectorAll("[title], [aria-label]")].map((each) => each.title + each.ariaLabel)]"""
    )
    assert not [text for text in said if TURNING.search(text)]


def test_hostile_texts_are_texts_in_every_view(pages, explorer):
    page = pages.open(explorer.server.url)
    for address, text in (
        ("documents", "<script>globalThis.owned"),
        ("documents?source=0&document=3", "</style>"),
        ("samples", None),
        ("search?text=globalThis", "<script>"),
        ("documents?source=0&document=3&start=2&length=4", None),
    ):
        page.evaluate("address => { location.hash = `#/${address}` }", address)
        expect(page.locator("main .waiting, main [aria-busy=true]")).to_have_count(0)
        if text is not None:
            expect(page.locator("main")).to_contain_text(text)
        check_harmless(page)
    read = explorer("occurrences", source=0, document=3)["rows"][0]["position"]
    page.evaluate("position => { location.hash = `#/samples?position=${position}` }", read)
    expect(page.locator(".detail")).to_contain_text("<script>globalThis.owned")
    check_harmless(page)
    pages.picture(page, "explorer-hostile", whole=False)


def test_hostile_texts_of_the_address_are_texts(pages, explorer):
    page = pages.open(explorer.server.url)
    expect(page.locator("h1")).to_be_visible()
    pages.expect_complaint("Failed to load resource")
    for place in ("search?text=", "samples?position=", "documents?source=", "", "nowhere"):
        address = place + OWNED
        page.evaluate("address => { location.hash = `#/${address}` }", address)
        expect(page.locator("main h1")).to_be_visible()
        check_harmless(page)


def test_hostile_names_of_folders_and_files_are_texts(pages, explored, tmp_path):
    folder = tmp_path / "a<img src=x onerror=globalThis.owned=4>\u202e"
    folder.mkdir()
    shutil.copy(explored.folder / "tokenizer.json", folder)
    preprocess(folder, "b<b>", f"{folder.name}&amp;.jsonl", ["one text", "another"])
    with explored.served(explored.looking(os.fspath(folder / "b<b>_text_document"))) as asker:
        page = pages.open(asker.server.url)
        expect(page.locator("#target")).to_contain_text("b<b>_text_document")
        expect(page.locator(".findings p")).not_to_have_text("Looking …")
        check_harmless(page)
        page.evaluate("location.hash = '#/documents?document=1'")
        expect(page.locator(".detail")).to_contain_text(r"onerror=globalThis.owned=4>\u202e&amp;.jsonl:2")
        check_harmless(page)


def test_data_without_tokenizer_show_ids_and_say_why(pages, explored, tmp_path):
    prefix = write_corpus(tmp_path / "ids", [[1, 2, 3], [], list(range(100))])
    with explored.served(explored.looking(os.fspath(prefix))) as asker:
        page = pages.open(asker.server.url)
        expect(page.locator(".findings")).to_contain_text("no manifest")
        page.get_by_role("link", name="Documents", exact=True).click()
        page.locator(".list [role=row][aria-rowindex='4']").click()
        expect(page.locator(".tokens")).to_contain_text("1 2 3")
        expect(page.locator(".occurrence-list")).to_have_count(0)
        page.get_by_role("link", name="Compare", exact=True).click()
        expect(page.locator("main")).to_contain_text("There is no second run")
        page.get_by_role("link", name="Watch", exact=True).click()
        expect(page.locator("main")).to_contain_text("Nothing is at work")


def test_an_error_is_told_in_its_place_and_tried_again(pages, explored):
    broken = threading.Event()
    broken.set()
    views = views_of(explored.run())
    positions = views["positions"]

    def failing(query):
        if broken.is_set():
            message = "`web.bin` ends early"
            raise DatasetFormatError(message, hint="verify it: `tokenloom verify web`")
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


def test_a_server_that_is_gone_is_told_until_it_is_back(pages, explored):
    pages.expect_complaint("ERR_CONNECTION_REFUSED")
    looking = explored.run()
    with explored.served(looking) as asker:
        page = pages.open(asker.server.url)
        page.get_by_role("link", name="Samples", exact=True).click()
        expect(page.locator(".list [aria-rowindex='2']")).to_contain_text("web")
        port, token = asker.server.port, asker.server.access.token
    with socket.socket() as kept:  # from others, until the server is back: nothing listens there
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", port))
        page.locator(".list [aria-rowindex='2']").click()
        expect(page.locator("#gone")).to_contain_text("The server does not answer")
        expect(page.locator(".list [aria-rowindex='2']")).to_contain_text("web")
        again = LocalServer(views_of(looking), port=port)
    again.access.token = token
    thread = threading.Thread(target=again.run)
    thread.start()
    try:
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".detail h2")).to_have_text("position 0")
        expect(page.locator("#gone")).to_be_empty()
    finally:
        again.stop()
        thread.join()


def test_a_search_is_stopped_and_goes_on(pages, explored):
    asked = []
    views = views_of(explored.run())

    def slow(query):
        cursor = int(query.text("cursor", "0"))
        query.text("text")
        asked.append(cursor)
        return {"matches": [], "searched_tokens": cursor, "total_tokens": 10**6, "cursor": str(cursor + 1)}

    with serving({**views, "search": slow}) as asker:
        page = pages.open(asker.server.url)
        expect(page.locator("h1")).to_be_visible()
        page.evaluate("location.hash = '#/search?text=rare'")
        expect(page.locator(".told")).to_contain_text("of 1,000,000 tokens")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Search on")).to_be_visible()
        stopped = len(asked)
        page.get_by_role("button", name="Search on").click()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.get_by_role("link", name="Overview", exact=True).click()
        expect(page.locator("h1")).to_have_text("Overview")
        page.go_back()
        expect(page.get_by_role("button", name="Search on")).to_be_visible()
    assert len(asked) >= stopped
    assert asked == sorted(asked)


def test_a_job_is_watched_until_it_is_done(pages, explored):
    first = {"words": "1 of 4 shards is done.", "progress": {"done": 1, "total": 4, "unit": "shards"}}
    last = {"words": "The job is done: its folder `job` is gone.", "progress": None, "is_over": True}
    is_done, answers = threading.Event(), []
    views = views_of(explored.run())
    target = views["target"]
    told = {"is_over": False, "facts": [["tokens", "12"]], "html": "<p>words</p>", "charts": []}

    def watch(query):
        answers.append(last if is_done.is_set() else first)
        return {**told, **answers[-1]}

    views |= {
        "target": lambda query: {**target(query), "views": ["overview", "watch"]},
        "watch": watch,
    }
    with serving(views) as asker:
        page = pages.open(asker.server.url)
        page.get_by_role("link", name="Watch", exact=True).click()
        expect(page.locator("main")).to_contain_text("1 of 4 shards is done.")
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "1")
        is_done.set()
        expect(page.locator("main")).to_contain_text("The job is done")
        expect(page.get_by_role("progressbar")).to_have_count(0)
    assert answers.count(last) == 1
