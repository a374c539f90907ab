"""HTML pieces, and documents and samples as HTML: no text becomes an element."""

import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.drawn import sample, shown, span

from tokenloom.rendering.words import printable
from tokenloom_look.html import element, facts, joined, table
from tokenloom_look.shown_html import legend_html, shown_html

TAGS = {"div", "section", "h3", "p", "span", "ul", "li"}
ATTRIBUTES = {"class", "dir", "data-source", "data-document", "data-start", "data-slot", "data-count", "data-id"}


class Page(HTMLParser):
    """The elements, attributes and text that a browser would parse."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_sample_is_a_section_per_document():
    assert shown_html(sample(), tokens=False) == (
        '<div class="shown mixed"><p class="note">a note</p>'
        '<section class="document" data-source="web" data-document="3" data-start="8">'
        "<h3>document 3 of web, tokens 8 to 9 of 10</h3>"
        '<p class="origin">made from raw/web.jsonl:17</p><div class="tokens" dir="auto">'
        '<span class="visually-hidden">[without loss] </span><span class="run no-loss" data-slot="0">end.</span>'
        '<span class="visually-hidden">[with loss, end of document] </span>'
        '<span class="run eod loss" data-slot="1">&lt;eod&gt;</span></div></section>'
        '<section class="document" data-source="web" data-document="5" data-start="0">'
        '<h3>document 5 of web, all 5 tokens</h3><div class="tokens" dir="auto">'
        '<span class="visually-hidden">[without loss, beginning of document] </span>'
        '<span class="run bos no-loss" data-slot="2">&lt;s&gt;</span>'
        '<span class="visually-hidden">[with loss] </span>'
        '<span class="run loss" data-slot="3">two<span class="mark">↵</span>\nlinesé</span>'
        '<span class="visually-hidden">[end of document] </span>'
        '<span class="run eod loss" data-slot="6">&lt;eod&gt;</span></div></section>'
        '<section class="document" data-source="web" data-document="6" data-start="0">'
        '<h3>document 6 of web, tokens 0 to 1 of 10, denied: padding</h3><div class="tokens" dir="auto">'
        '<span class="run denied no-loss" data-slot="7" data-count="2">[denied: padding x 2]</span></div></section>'
        '<section class="document" data-source="web" data-document="8" data-start="0">'
        "<h3>document 8 of web, empty</h3></section>"
        '<section class="between"><div class="tokens" dir="auto">'
        '<span class="run padding no-loss" data-slot="9" data-count="3">[padding x 3]</span></div></section></div>'
    )


@given(st.text(), st.booleans())
def test_any_text_is_escaped(text, tokens):
    spans = [span(0, 0, 2, slot=0, source=text, origin=text)]
    hostile = shown([text, text], spans=spans, kinds=["text", "special"], loss=[True, False], notes=(text,))
    drawn = shown_html(hostile, tokens=tokens) + legend_html(hostile)
    page = Page(drawn)
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, found in page.elements for name in found} <= ATTRIBUTES
    drawn.encode()
    controls = {char for char in drawn if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert controls <= set("\n\t\u200c\u200d")


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
def test_texts_are_escaped(one: str, other: str):
    written = table([one, other], [[one, other]], caption=one, note=other)
    drawn = joined([element("p", one, title=other), written, facts([(one, other)])])
    page = Page(drawn)
    tags = "p table caption thead tr th th tbody tr th td p table tbody tr th td"
    assert [tag for tag, _ in page.elements] == tags.split()
    assert page.text == "".join(map(printable, [one, one, one, other, one, other, other, one, other]))
    assert page.elements[0][1]["title"] == printable(other)
    assert drawn.encode()
