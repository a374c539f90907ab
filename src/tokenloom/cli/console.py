"""Tables; the only module that imports rich, and only when something is shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_UNFOLDED = 4096
"""Columns; wider than any path."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Prints a table to stdout; the first column is aligned left, the others right. Texts are shown as they are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Output(Console):
        def on_broken_pipe(self) -> None:  # called where it was caught; rich would exit
            raise

    table = Table(title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Output()
    if not console.is_terminal:  # lines that a program reads are not folded
        console = Output(width=_UNFOLDED)
    console.print(table)


def bar(share: float) -> str:
    """Returns a bar for a share in [0, 1], 30 columns wide, in characters that stdout can show."""
    encoding = (sys.stdout.encoding or "ascii").lower()
    return (("█" if encoding.startswith("utf") else "#") * round(30 * share)).ljust(30)
