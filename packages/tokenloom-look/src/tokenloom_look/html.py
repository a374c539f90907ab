"""Builds HTML; every text that is not `Markup` is escaped.

`+`, `join` and f-strings turn `Markup` into plain text. A mistake then displays tags as text, and never runs a script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from tokenloom.rendering.words import printable

Cell: TypeAlias = str | int | float | None
"""The content of a table cell: HTML, text or a number; None is an empty cell."""

_QUANTITY = re.compile(
    r"[<>]?[-+\u2212]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?([%xkMBT]| [^\W\d]\S{0,11})?", re.ASCII | re.IGNORECASE
)
"""A formatted number with its unit: `1,024`, `<0.1%`, `1.91M`, `3.1 GB`, `40 tokens/s`."""


class Markup(str):
    """Escaped HTML, made by `escaped` and the builders of this module."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    r"""Escapes a text: HTML characters, control characters and marks that change the writing direction.

    Example:
        >>> escaped("<script>\u202e'&")
        '&lt;script&gt;\\u202e&#x27;&amp;'
    """
    return Markup(html.escape(printable(text)))


def element(tag: str, *children: Cell, **attributes: str | int | bool | None) -> Markup:
    """Returns an HTML element; children that are not `Markup` are escaped.

    In attribute names, write `_` for `-`, and `class_` for `class`. The value True adds an attribute without a value;
    False and None omit the attribute.

    Example:
        >>> element("td", "a < b", class_="name", hidden=True, data_number=3)
        '<td class="name" hidden data-number="3">a &lt; b</td>'
    """
    written = [
        f" {name}" if value is True else f' {name}="{escaped(str(value))}"'
        for name, value in ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
        if value is not None and value is not False
    ]
    return Markup(f"<{tag}{''.join(written)}>{joined(children)}</{tag}>")


def joined(parts: Iterable[Cell], separator: str = "") -> Markup:
    """Joins parts with a separator; parts and separators that are not `Markup` are escaped.

    Example:
        >>> joined(["a & b", element("b", "c")], ", ")
        'a &amp; b, <b>c</b>'
    """
    return Markup(_markup(separator).join(map(_markup, parts)))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, caption: str | None = None, note: str | None = None
) -> Markup:
    """Returns a table; the first cell of a row is a heading. Columns of quantities (`3.1 GB`) get the class `number`.

    Example:
        >>> table(["file", "tokens"], [["a<b", 1024]])
        '<table><thead><tr><th scope="col">file</th><th scope="col" class="number">tokens</th></tr></thead><tbody><tr><th scope="row">a&lt;b</th><td class="number">1,024</td></tr></tbody></table>'
    """  # noqa: E501 - the result is one line
    lines = [list(row) for row in rows]
    kinds = [_kind(row[place] for row in lines) for place in range(len(columns))]
    head = element(
        "tr", *(element("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True))
    )
    body = [
        element(
            "tr",
            *(
                element("td", cell, class_=kind) if place else element("th", cell, scope="row", class_=kind)
                for place, (cell, kind) in enumerate(zip(row, kinds, strict=True))
            ),
        )
        for row in lines
    ]
    drawn = element("table", _caption(caption), element("thead", head), element("tbody", *body))
    return drawn if note is None else joined([drawn, element("p", note, class_="note")])


def facts(pairs: Iterable[tuple[str, Cell]], *, caption: str | None = None) -> Markup:
    """Returns a table of names and values without column headings; pairs with the value None are skipped.

    Example:
        >>> facts([("documents", 3000), ("tokenizer", None)])
        '<table class="facts"><tbody><tr><th scope="row">documents</th><td>3,000</td></tr></tbody></table>'
    """
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in pairs
        if value is not None
    ]
    return element("table", _caption(caption), element("tbody", *rows), class_="facts")


def _markup(cell: Cell) -> Markup:
    if isinstance(cell, Markup):
        return cell
    if isinstance(cell, bool):
        return Markup("yes" if cell else "no")
    if isinstance(cell, int):
        return Markup(f"{cell:,}")
    return Markup("") if cell is None else escaped(cell if isinstance(cell, str) else f"{cell:,.6g}")


def _caption(caption: str | None) -> Markup:
    return Markup("") if caption is None else element("caption", caption)


def _kind(cells: Iterable[Cell]) -> str | None:
    """Returns the class of a column: "number" if all cells that are not empty are quantities, else None."""
    found = [cell for cell in cells if cell is not None and cell != ""]
    are_quantities = all(not isinstance(cell, (str, bool)) or _QUANTITY.fullmatch(str(cell)) for cell in found)
    return "number" if found and are_quantities else None
