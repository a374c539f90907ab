"""The explorer's page in a browser: views, keys, links, hostile texts, errors."""

import re
import threading
from collections.abc import Iterator

import pytest
from explorers import Asker, Explored, make_explored, serving
from playwright.sync_api import Page, expect
from tests.preprocess.corpus import sources

from tokenloom.errors import DatasetFormatError
from tokenloom_look.explorer.application import views_of

pytestmark = pytest.mark.slow

OWNED = "<script>globalThis.owned = 1</script><img src=x onerror='globalThis.owned = 2'>"
HOSTILE = f"{OWNED}</div></main><style>*{{display:none}}</style>\x00\x1b[2J\u202eevil\u2066 &amp; \u200b"


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    web = [f"The keeper counted {n} waves of winter {n % 7}. " * (3 + n % 9) + "\n" for n in range(400)]
    web[3] = HOSTILE
    web[5] = ""
    web[11] = "A document of many pages. " * 2000
    code = [block for text in sources() for block in text.split("\n\n\n") if block.strip()]
    return make_explored(tmp_path_factory.mktemp("explored"), web=web, code=code, length=96, samples=1200)


@pytest.fixture(scope="session")
def explorer(explored: Explored) -> Iterator[Asker]:
    """Serves the run, of which 30 steps are done."""
    with serving(views_of(explored.run(consumed=240))) as asker:
        yield asker


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
    rows = explorer("occurrences", source=0, document=3)["rows"]
    read = next(row["position"] for row in rows if row["start"] == 0)
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


VIEWS = {"overview": "", "samples": "?position=801", "documents": "?source=0&document=6", "watch": ""}
VIEWS["search"] = "?text=The+keeper+counted+7+waves"


@pytest.fixture
def opened(pages, explorer):
    def open_at(address: str = "", **settings: object) -> Page:
        page = pages.open(explorer.server.url, **settings)
        expect(page.locator("h1")).to_be_visible()
        if address:
            page.evaluate("address => { location.hash = address }", address)
        return page

    return open_at


def row(page: Page, number: int):
    return page.locator(f".list [role=row][aria-rowindex='{number + 2}']")


def detail(page: Page):
    return page.locator(".detail h2")


def test_a_position_is_opened_token_by_token(opened, explorer):
    page = opened("#/samples")
    row(page, 4).click()
    expect(detail(page)).to_have_text("position 4")
    answer = explorer("position", position=4)
    assert page.locator(".tokens .token").count() == answer["html"].count("data-id=") == 97
    expect(page.locator(".spans tbody tr")).to_have_count(len(answer["spans"]))
    expect(page).to_have_url(re.compile(r"#/samples\?position=4$"))
    assert row(page, 4).get_attribute("aria-selected") == "true"
    assert "ids" not in page.locator(".shown").get_attribute("class").split()
    page.get_by_label("Token ids").check()
    expect(page.locator(".shown.ids")).to_have_count(1)
    page.get_by_label("Next sample").click()
    expect(detail(page)).to_have_text("position 5")
    expect(page.locator(".shown.ids")).to_have_count(1)
    page.keyboard.press("k")
    expect(detail(page)).to_have_text("position 4")


def test_the_overview_has_all_sections_of_a_report(opened, explorer):
    page = opened()
    sections = [explorer("section", id=each["id"]) for each in explorer("target")["sections"]]
    told = [each for each in sections if each["html"] or each["charts"]]
    expect(page.locator(".findings p")).not_to_have_text("Loading sections …")
    assert page.locator(".report-section:visible > h2").all_text_contents() == [each["title"] for each in told]
    assert page.locator(".contents a:visible").all_text_contents() == [each["title"] for each in told]
    assert page.locator(".report-section .chart canvas").count() == sum(len(each["charts"]) for each in told)
    assert page.locator(".findings li").count() == sum(len(each["findings"]) for each in told)
    page.get_by_role("navigation", name="Sections").get_by_role("link").last.click()
    expect(page.locator(".report-section:visible > h2").last).to_be_focused()
    expect(page.locator(".report-section:visible > h2").last).to_be_in_viewport()
    expect(page.get_by_role("navigation", name="Views")).to_be_in_viewport()  # the view alone was scrolled
    assert page.evaluate("document.scrollingElement.scrollTop") == 0


def test_links_between_overview_documents_and_positions(opened):
    page = opened()
    expect(page.locator("h1")).to_have_text("Overview")
    page.get_by_role("link", name="Samples", exact=True).click()
    expect(page.locator("h1")).to_have_text("Samples")
    row(page, 2).click()
    span = page.locator(".spans a").first
    named, number = re.fullmatch(r"(\w+) · (\d+)", span.text_content()).groups()
    span.click()
    expect(page.locator("h1")).to_have_text("Documents")
    expect(detail(page)).to_have_text(f"document {number} of {named}")
    expect(row(page, int(number))).to_have_attribute("aria-selected", "true")
    expect(page.locator(".token.found")).to_be_in_viewport()
    reads = page.locator(".occurrences tbody tr")
    page.locator(".occurrence-list").scroll_into_view_if_needed()
    expect(reads.first).to_be_visible()
    assert "2" in reads.locator("a").all_text_contents()
    assert "consumed" in reads.first.text_content()
    reads.locator("a").first.click()
    expect(detail(page)).to_have_text(re.compile("position"))
    page.go_back()
    expect(detail(page)).to_have_text(f"document {number} of {named}")
    page.go_back()
    expect(detail(page)).to_have_text("position 2")
    page.go_back()
    expect(page.locator(".detail")).to_contain_text("Open a sample")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Overview")
    page.go_forward()
    expect(page.locator("h1")).to_have_text("Samples")


def test_jumps_lead_to_what_was_named(opened):
    page = opened()
    for words, heading in (("1,000", "position 1,000"), ("code.jsonl:4", "document 3 of code")):
        page.keyboard.press("/")
        page.get_by_label("Jump to").fill(words)
        page.keyboard.press("Enter")
        expect(detail(page)).to_have_text(heading)
        expect(detail(page)).to_be_focused()


def test_search_results_link_to_documents(opened):
    page = opened("#/search")
    page.get_by_label("Search text").fill("A document of many pages")
    page.keyboard.press("Enter")
    expect(page.locator(".matches li").first).to_be_visible()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    assert page.locator(".matches mark").first.text_content() == "A document of many pages"
    page.locator(".matches a").nth(1).click()
    expect(detail(page)).to_have_text("document 10 of web")
    expect(page.locator(".token.found").first).to_be_in_viewport()
    assert "document of many pages" in "".join(page.locator(".token.found").all_text_contents())
    page.go_back()
    expect(page.get_by_label("Search text")).to_have_value("A document of many pages")
    assert page.locator("input:not([type=checkbox])").evaluate_all("all => all.filter((each) => each.spellcheck)") == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_accessible_in_light_dark_and_narrow(opened, pages, view):
    page = opened(f"#/{view}{VIEWS[view]}", height=480)
    waiting = page.locator(".waiting, [aria-busy=true], .search-form button:text('Stop')")
    expect(page.locator("nav [aria-current=page]")).to_have_text(view.capitalize())
    expect(waiting).to_have_count(0)
    for scheme, width, height in (("light", 1280, 900), ("dark", 1280, 900), ("narrow", 390, 844)):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        if scheme != "narrow":
            pages.check_accessible(page)
        page.set_viewport_size({"width": width, "height": height})
        expect(waiting).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        if scheme == "narrow" and view == "overview":  # what is too wide for its place must be reached by keys
            pages.check_accessible(page)
        page.evaluate("document.activeElement.blur()")  # the view's heading, since no mouse led here
        pages.picture(page, f"explorer-{view}-{scheme}", whole=False)
        page.set_viewport_size({"width": 1280, "height": 480})
