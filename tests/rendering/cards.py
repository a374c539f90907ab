"""Reads cards as a browser would: tables, texts and elements."""

from html.parser import HTMLParser


class _Card(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.in_cell = self.in_style = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.in_cell = tag in ("td", "th")
        self.in_style = tag == "style"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif self.in_cell:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.tables[-1][-1][-1] += data
        if not self.in_style:
            self.text += data


def tables_of(card: str) -> list[list[list[str]]]:
    """Returns the rows of each table of a card."""
    return _Card(card).tables


def text_of(card: str) -> str:
    """Returns all that a card says."""
    return _Card(card).text


def tags_of(card: str) -> list[str]:
    """Returns the elements of a card, in order."""
    return _Card(card).tags
