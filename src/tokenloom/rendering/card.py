"""Facts of an object as plain values, and as HTML (without scripts and styles) for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenloom.rendering.words import name_of, printable

MOST_ROWS = 12
"""Maximum rows of a displayed table; the last row of a longer table has the sums of all rows that are not displayed."""

_LONGEST = 120  # characters of a displayed text; longer texts are shortened in the middle


class HasFacts:
    """Base class of objects that describe themselves by `facts`; notebooks display the facts as a table."""

    __slots__ = ()

    def facts(self) -> dict[str, Any]:
        """Returns facts about the object by name, without reading or building anything.

        Values are numbers, strings, None for unknown facts, and tables, which are lists of mappings with the same keys.
        The fact "problems" is a list of strings that say what is wrong.
        """
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            return card(type(self).__name__, self.facts())
        except Exception:  # noqa: BLE001 - a user's class may raise anything, and display must not fail
            return None  # the notebook displays the `repr`


def card(kind: str, facts: Mapping[str, Any]) -> str:
    """Formats facts (see `HasFacts.facts`) as HTML; `kind` is the title, usually the name of the class.

    Example:
        >>> card("Pair", {"tokens": 1024, "dtype": None, "name": "<b>"})
        '<p><strong>Pair</strong></p><table><tr><td>tokens</td><td>1,024</td></tr><tr><td>name</td><td>&lt;b&gt;</td></tr></table>'
    """
    tables = {name: rows for name, rows in facts.items() if isinstance(rows, list)}
    plain = {name: value for name, value in facts.items() if name not in tables and value is not None}
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
    """Shortens a table to `most` rows; the last row then has the sums of the omitted rows in the integer columns."""
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
