"""Tables, drawn by rich, which is only imported when something is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tokenloom.rendering.words import cell_width, lines_of, name_of

_UNFOLDED = 4096
"""Columns; wider than any path."""

_LEAST_FIRST = 20
"""Columns that a shortened name keeps."""

_BETWEEN = 3
"""Columns between two cells of a table, and one more at its end."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Prints a table to stdout; columns with a heading are aligned right, but the first. Texts are shown as they are.

    On a terminal that is too narrow, names in the first column are shortened in their middle, or rows become blocks. A
    program that reads stdout gets each row on a line, whole.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Output(Console):
        def on_broken_pipe(self) -> None:  # called where it was caught; rich would exit
            raise

    console = Output()
    if not console.is_terminal:  # lines that a program reads are not folded
        console = Output(width=_UNFOLDED)
    elif (fitting := shortened(columns, rows, console.width)) is None:
        if title is not None:
            print(title)
        for line in blocks(columns, rows, console.width):
            print(line)
        return
    else:
        rows = fitting
    table = Table(title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number and column else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def shortened(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[str]] | None:
    """Returns the rows of a table so that it takes at most so many columns; None where names cannot be so short."""
    widths = [max(map(cell_width, column)) for column in zip(columns, *rows, strict=True)]
    room = width - 1 - _BETWEEN * len(widths) - sum(widths[1:])
    if widths[0] <= room:
        return rows
    if room < max(_LEAST_FIRST, cell_width(columns[0])):
        return None
    return [(name_of(row[0], width=room), *row[1:]) for row in rows]


def blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yields a table as lines of at most so many columns: of each row its name, then its other cells below it.

    Of a table of names and values, whose columns have no headings of their own, a value stands behind its name where
    there is room.
    """
    for first, *others in rows:
        if len(columns) == 2 and not columns[1]:
            both = f"{first}: {others[0]}"
            lines = [both] if cell_width(both) <= width else [f"{first}:", *_indented(others[0], width)]
        else:
            named = [f"{column} {cell}" for column, cell in zip(columns[1:], others, strict=True) if cell]
            lines = [first, *_indented(", ".join(named), width)]
        for line in lines:
            yield from lines_of(line, width)


def _indented(text: str, width: int) -> Iterator[str]:
    yield from (f"  {line}" for line in lines_of(text, max(2, width - 2)))


def bar(share: float) -> str:
    """Returns a bar for a share in [0, 1], 30 columns wide, in characters that stdout can show."""
    encoding = (sys.stdout.encoding or "ascii").lower()
    return (("█" if encoding.startswith("utf") else "#") * round(30 * share)).ljust(30)
