"""An object says its facts once, as plain values; a notebook shows them as a card, HTML without script or style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenloom.rendering.words import name_of, printable

MOST_ROWS = 12
"""Rows of a table; of more, the last is the sum of all others."""

_LONGEST = 120  # characters of a name; of longer ones, how they begin and end is shown


class HasFacts:
    """An object that says its facts once."""

    __slots__ = ()

    def facts(self) -> dict[str, Any]:
        """Returns what is known of the object without opening, reading or building something, by name.

        Values are numbers, texts, None where nothing is known, and tables: lists of mappings with the same keys. Texts
        under "problems" say what is wrong.
        """
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            return card(type(self).__name__, self.facts())
        except Exception:  # noqa: BLE001 - a dataset of a user's own may raise anything, and a card is only looked at
            return None  # a notebook shows the `repr`


def card(kind: str, known: Mapping[str, Any]) -> str:
    """Returns facts, see `HasFacts.facts`, as HTML; `kind` is the name of the object's class, as a rule.

    Example:
        >>> card("Pair", {"tokens": 1024, "dtype": None, "name": "<b>"})
        '<p><strong>Pair</strong></p><table><tr><td>tokens</td><td>1,024</td></tr><tr><td>name</td><td>&lt;b&gt;</td></tr></table>'
    """
    tables = {name: rows for name, rows in known.items() if isinstance(rows, list)}
    plain = {name: value for name, value in known.items() if name not in tables and value is not None}
    found = [f"<p><strong>{_text(kind)}</strong></p>"]
    found += [f"<p><strong>{html.escape(printable(problem))}</strong></p>" for problem in tables.pop("problems", [])]
    if plain:
        found.append(f"<table>{''.join(_row('td', pair) for pair in plain.items())}</table>")
    found += [_table(name, rows) for name, rows in tables.items() if rows]
    return "".join(found)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    shown = first_rows([tuple(row.values()) for row in rows])
    body = _row("th", rows[0]) + "".join(_row("td", row) for row in shown)
    return f"<table><caption>{_text(name)}</caption>{body}</table>"


def first_rows(rows: Sequence[Sequence[Any]], most: int | None = MOST_ROWS) -> Sequence[Sequence[Any]]:
    """Returns the rows of a table that are shown; of many the first, and the sums of whole numbers of all others."""
    if most is None or len(rows) <= most:
        return rows
    _, *columns = zip(*rows[most - 1 :], strict=True)
    sums = [sum(cells) if all(type(cell) is int for cell in cells) else None for cells in columns]
    return [*rows[: most - 1], (f"{len(rows) - most + 1:,} others", *sums)]


def _row(cell: str, values: Iterable[Any]) -> str:
    return f"<tr>{''.join(f'<{cell}>{_text(value)}</{cell}>' for value in values)}</tr>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = f"{value:,}" if type(value) is int else printable(str(value))
    return html.escape(name_of(text, width=_LONGEST))
