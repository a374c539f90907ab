"""Pieces of HTML, in which no text of a stranger is more than a text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.words import printable
from tokenloom_look.html import element, facts, joined, table


class Page(HTMLParser):
    """The elements, attributes and texts that a browser would find."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def test_a_table_is_written():
    assert table(["name", "tokens"], [["a", 1024], ["b", None]], caption="all", note="or < some") == (
        "<table><caption>all</caption>"
        '<thead><tr><th scope="col">name</th><th scope="col" class="number">tokens</th></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td class="number">1,024</td></tr>'
        '<tr><th scope="row">b</th><td class="number"></td></tr></tbody></table>'
        '<p class="note">or &lt; some</p>'
    )
    assert table(["name"], []) == '<table><thead><tr><th scope="col">name</th></tr></thead><tbody></tbody></table>'


@given(st.text(), st.text())
def test_texts_are_shown_and_never_obeyed(one: str, other: str):
    drawn = joined(
        [
            element("p", one, title=other),
            table([one, other], [[one, other]], caption=one, note=other),
            facts([(one, other)]),
        ]
    )
    page = Page(drawn)
    assert " ".join(page.tags) == "p table caption thead tr th th tbody tr th td p table tbody tr th td"
    assert page.text == "".join(map(printable, [one, one, one, other, one, other, other, one, other]))
    assert dict(page.attributes)["title"] == printable(other)
    assert drawn.encode()
