"""Lists of 10^8 rows: what is asked for, where rows stand, and what is said of them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from tests.explorer.asking import serving

NUM_DOCUMENTS = 10**8


def document_rows(first: int, count: int) -> list[dict[str, object]]:
    numbers = range(min(first, NUM_DOCUMENTS), min(first + count, NUM_DOCUMENTS))
    return [
        {
            "document": number,
            "num_tokens": number % 977,
            "preview": f"text {number}",
            "file": "a.jsonl",
            "record": number,
        }
        for number in numbers
    ]


class Huge:
    """Views of a corpus of 10^8 documents that nobody wrote; keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def target(self, query):
        return {
            "kind": "pair",
            "name": "huge",
            "facts": [],
            "sources": [{"number": 0, "name": "huge", "num_documents": NUM_DOCUMENTS, "num_tokens": 2**53 + 3}],
            "num_sources": 1,
            "num_positions": None,
            "has_positions": True,
            "has_steps": False,
            "has_occurrences": False,
            "sections": [],
            "views": ["overview", "documents", "samples"],
            "compared": None,
            "notes": [],
        }

    def documents(self, query):
        query.number("source")
        first, count = query.page(default=50, most=200)
        self.asked.append((first, count))
        return {"total": NUM_DOCUMENTS, "first": first, "rows": document_rows(first, count)}

    def positions(self, query):
        first, count = query.page(default=50, most=200)
        row = {"step": None, "stage": None, "source": None, "num_spans": 1, "preview": "p"}
        return {"total": None, "first": first, "rows": [row | {"position": first + place} for place in range(count)]}

    def views(self):
        return {"target": self.target, "documents": self.documents, "positions": self.positions}


@pytest.fixture
def huge(pages):
    """A page on 10^8 documents, and what it asked for."""
    views = Huge()
    with serving(views.views()) as asker:
        page = pages.open(asker.server.url)
        expect(page.locator("h1")).to_have_text("Overview")
        page.evaluate("location.hash = '#/documents'")
        expect(row(page, 0)).to_have_attribute("aria-busy", "false")
        yield page, views
        page.close()


def row(page: Page, number: int):
    return page.locator(f".list [role=row][aria-rowindex='{number + 2}']")


def check_order(page: Page) -> None:
    """Checks that rows in the window follow each other without a gap, and stand in the order in which they are read."""
    shown = page.evaluate(
        """() => {
          const box = document.querySelector(".list-rows").getBoundingClientRect();
          return [...document.querySelectorAll(".list-spacer > .row")]
            .map((row) => [Number(row.ariaRowIndex) - 2, row.getBoundingClientRect().top - box.top])
            .filter(([, top]) => top > -40 && top < box.height);
        }"""
    )
    assert len(shown) >= 10
    for (number, top), (after, after_top) in pairwise(shown):
        assert after == number + 1
        assert after_top - top == pytest.approx(40, abs=1)


def test_the_first_rows_of_10_to_the_8_need_one_small_request(huge):
    page, views = huge
    assert views.asked == [(0, 50)]
    grid = page.get_by_role("grid")
    assert grid.get_attribute("aria-rowcount") == str(NUM_DOCUMENTS + 1)
    assert page.locator(".list [role=row]").count() < 60
    expect(page.locator(".told").first).to_have_text("100,000,000 documents, 9,007,199,254,740,995 tokens.")
    assert page.locator(".list-spacer").evaluate("element => element.offsetHeight") <= 4_000_000


def test_ends_and_middle_are_reached_by_keys_and_in_order(huge):
    page, _ = huge
    row(page, 0).focus()
    page.keyboard.press("End")
    expect(row(page, NUM_DOCUMENTS - 1)).to_be_focused()
    expect(row(page, NUM_DOCUMENTS - 1)).to_contain_text(f"text {NUM_DOCUMENTS - 1}")
    check_order(page)
    for _ in range(3):
        page.keyboard.press("PageUp")
    check_order(page)
    page.keyboard.press("Home")
    expect(row(page, 0)).to_be_focused()
    expect(row(page, 0)).to_be_in_viewport()
    check_order(page)


def test_a_dragged_bar_and_a_turned_wheel_agree(huge):
    page, views = huge
    scroller = page.locator(".list-rows")
    scroller.evaluate("element => { element.scrollTop = element.scrollHeight / 2; }")
    expect(row(page, 0)).to_have_count(0)
    middle = page.locator(".list-spacer > .row[aria-busy=false]").nth(20)
    expect(middle).to_contain_text("text ")
    number = int(re.search(r"text (\d+)", middle.text_content()).group(1))
    assert abs(number - NUM_DOCUMENTS / 2) < NUM_DOCUMENTS / 1000
    scroller.hover()
    for _ in range(5):
        page.mouse.wheel(0, 400)
    expect(row(page, number + 40)).to_contain_text(f"text {number + 40}")
    check_order(page)
    assert all(count == 50 for _, count in views.asked)
    assert len(views.asked) < 12


def test_what_is_scrolled_past_is_not_asked_for(huge):
    page, views = huge
    page.locator(".list-rows").evaluate(
        """element => {
          for (let part = 1; part < 40; part++) setTimeout(() => { element.scrollTop = part * 90_000; }, part * 5);
        }"""
    )
    expect(page.locator(".list-spacer > .row").first).to_have_attribute("aria-rowindex", re.compile(r"^8\d{7}$"))
    expect(page.locator(".list-spacer > .row[aria-busy=true]")).to_have_count(0)
    assert len(views.asked) < 12


def test_a_run_without_end_goes_on(huge):
    page, _ = huge
    page.evaluate("location.hash = '#/samples'")
    expect(row(page, 0)).to_have_attribute("aria-busy", "false")
    assert page.get_by_role("grid").get_attribute("aria-rowcount") == "-1"
    for least in (9_000, 19_000, 29_000):
        page.locator(".list-rows").evaluate("element => { element.scrollTop = element.scrollHeight; }")
        page.wait_for_function(
            "least => Number(document.querySelector('.list-spacer > .row:last-child').ariaRowIndex) > least", arg=least
        )
    expect(page.locator(".list-spacer > .row[aria-busy=false]").first).to_be_visible()


def test_places_of_rows_in_an_element_that_cannot_be_high_enough(huge):
    page, _ = huge
    places = page.evaluate(
        """async () => {
          const { ScrollMap } = await import("/scroll_map.js");
          const map = new ScrollMap(), told = [];
          map.resize(1e8, 40);
          for (const row of [0, 1, 12345, 5e7, 99999999]) {
            const scrollTop = map.moveTo(row * 40);
            told.push([row, (scrollTop + map.offset) / 40, scrollTop >= 0 && scrollTop <= map.height]);
          }
          map.moveTo(2e9);
          let top = 2e9, scrollTop = map.moveTo(top);
          for (let step = 0; step < 2000; step++) {
            scrollTop = map.scrolled(scrollTop - 100, 800);
            top -= 100;
          }
          told.push(["wheel", scrollTop + map.offset, top]);
          return told;
        }"""
    )
    *rows, (_, reached, expected) = places
    assert [(number, place, inside) for number, place, inside in rows] == [
        (number, number, True) for number, _, _ in rows
    ]
    assert reached == expected
