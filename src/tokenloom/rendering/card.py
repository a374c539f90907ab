"""What a notebook shows of an object of ours: one look for all, on light and on dark ground, without script or request.

A card is cheap and never fails: what cannot be told without opening, reading or building something, or at all, is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tokenloom.rendering.html import Cell, Markup, element, facts, joined, table
from tokenloom.rendering.largest import largest
from tokenloom.rendering.words import name_of

Fact: TypeAlias = tuple[str, Cell | Callable[[], Cell]]
"""A name and a value, or what tells the value."""

MOST_ROWS = 12
"""Rows of a table; of more, the last is the sum of all others."""

_LONGEST = 120
"""Characters of a name; of longer ones, how they begin and end is shown."""

_DARK = "--ground:#1b1b1f;--ink:#e6e6e9;--faint:#a3a3ab;--line:#3b3b42;--alarm:#ff8f73"

_STYLE = f"""
.tokenloom-card{{--ground:#fff;--ink:#1b1b1f;--faint:#5e5e66;--line:#dcdce0;--alarm:#b03000;color-scheme:light dark;
display:inline-block;max-width:100%;box-sizing:border-box;overflow-x:auto;padding:.6em 1em .7em;
border:1px solid var(--line);border-radius:6px;background:var(--ground);color:var(--ink);
font:13px/1.45 system-ui,sans-serif;text-align:left}}
@media (prefers-color-scheme:dark){{.tokenloom-card{{{_DARK}}}}}
[data-jp-theme-light=true] .tokenloom-card,.vscode-light .tokenloom-card{{--ground:#fff;--ink:#1b1b1f;--faint:#5e5e66;
--line:#dcdce0;--alarm:#b03000}}
[data-jp-theme-light=false] .tokenloom-card,.vscode-dark .tokenloom-card{{{_DARK}}}
.tokenloom-card p{{margin:0 0 .3em;color:var(--ink);overflow-wrap:anywhere}}
.tokenloom-card .kind{{font-weight:600}}
.tokenloom-card .name{{color:var(--faint);margin-left:.5em;font-family:ui-monospace,monospace;font-size:12px}}
.tokenloom-card .alarm{{color:var(--alarm)}}
.tokenloom-card table{{border-collapse:collapse;margin:.4em 0 0;border:0;color:inherit;font-size:inherit}}
.tokenloom-card caption{{text-align:left;font-weight:600;color:inherit;padding:.3em 0;caption-side:top}}
.tokenloom-card tr{{background:none!important}}
.tokenloom-card th,.tokenloom-card td{{text-align:left!important;padding:.1em 1.4em .1em 0!important;border:0!important;
vertical-align:top;white-space:normal!important;overflow-wrap:anywhere;font-weight:400;color:inherit!important}}
.tokenloom-card thead th,.tokenloom-card .facts th{{color:var(--faint)!important;overflow-wrap:normal}}
.tokenloom-card thead th{{border-bottom:1px solid var(--line)!important}}
.tokenloom-card .number{{text-align:right!important;white-space:nowrap!important;font-variant-numeric:tabular-nums}}
"""


def card(
    kind: str,
    known: Iterable[Fact],
    *,
    name: str | None = None,
    tables: Iterable[Markup] = (),
    alarms: Iterable[str] = (),
) -> Markup:
    """Returns a card.

    Args:
        kind: what the object is; the name of its class, as a rule.
        known: facts; those whose value is None, or fails, are left out.
        name: its own name, such as a path.
        tables: shown below the facts.
        alarms: what is wrong; shown before all else.

    Example:
        >>> "<b>" in card("Run", [("sources", lambda: 1 // 0)], name="<b>")
        False
    """
    heading = element(
        "p",
        element("span", kind, class_="kind"),
        "" if name is None else joined([" ", element("span", name_of(name, width=_LONGEST), class_="name")]),
    )
    told = [element("p", alarm, class_="alarm", role="alert") for alarm in alarms]
    body = [heading, *told, known_facts(known), *tables]
    return element("div", element("style", Markup(_STYLE)), *body, class_="tokenloom-card")


def known_facts(known: Iterable[Fact], *, caption: str | None = None) -> Markup:
    """Returns a table of those facts that can be told; nothing if there are none.

    Args:
        known: names and values.
        caption: what they are about.
    """
    told = [(label, value) for label, value in ((label, _told(value)) for label, value in known) if value is not None]
    return facts(told, caption=caption) if told else Markup("")


def top_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    sizes: Sequence[float],
    others: Callable[[list[int]], Sequence[Cell]],
    caption: str | None = None,
) -> Markup:
    """Returns a table of the largest rows, in their own order, and one row for all others.

    Args:
        columns: headings.
        rows: all rows.
        sizes: by which they are chosen, one each.
        others: takes the numbers of the rows that are left out, and returns what their row holds beside its name.
        caption: what the table shows.
    """
    shown, rest = largest(sizes, MOST_ROWS)
    kept = [[_short_name(cell) for cell in rows[number]] for number in sorted(shown)]
    if rest:
        kept.append([f"{len(rest):,} others", *others(rest)])
    return table(columns, kept, caption=caption)


def _short_name(cell: Cell) -> Cell:
    return name_of(cell, width=_LONGEST) if isinstance(cell, str) and not isinstance(cell, Markup) else cell


def _told(value: Cell | Callable[[], Cell]) -> Cell:
    if not callable(value):
        return _short_name(value)
    try:
        return _short_name(value())
    except Exception:  # noqa: BLE001 - a dataset of a user's own may raise anything, and a card is only looked at
        return None
