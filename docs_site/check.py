"""Checks a built site: links and their anchors lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
_SAID_ONLY = {"canonical", "next", "prev", "edit", "alternate"}
"""Relations of a `link` that a browser does not load."""

_IN_STYLES = re.compile(r"""url\(\s*["']?(?:https?:)?//""")


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes notes of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name, value in values.items():
            if (tag, name) in _LOADED and not (tag == "link" and values.get("rel") in _SAID_ONLY):
                self.loads.append(value)


def faults(site: Path) -> list[str]:
    """Returns what is wrong with a built site, in words."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in sorted(pages.items()):
        where = path.relative_to(site.resolve())
        found += [f"{where}: loads {each}" for each in page.loads if urlsplit(each).netloc]
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or (where.name == "404.html" and link.startswith("/")):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where}: `{link}` leads to nothing")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: `{link}` leads to no such place of that page")
    for style in site.rglob("*.css"):
        if _IN_STYLES.search(style.read_text(encoding="utf-8")):
            found.append(f"{style.relative_to(site)}: loads from elsewhere")
    return found


def main() -> int:
    """Prints what is wrong; returns 1 if something is."""
    parser = argparse.ArgumentParser(prog="python -m docs_site.check", description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    site = parser.parse_args().site
    found = faults(site)
    print("\n".join(found), file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} faults")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
