"""Tables and progress displays; the only module that imports rich, and only when something is shown.

Data goes to stdout, progress to stderr; without a terminal there is no animation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_SECONDS_BETWEEN_UPDATES = 0.1

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


def _columns(*more_speeds: Any) -> tuple[Any, ...]:
    """Returns what a progress display shows: description, bar, bytes, speeds and remaining time."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    description = TextColumn("{task.description}", markup=False)
    return description, BarColumn(), DownloadColumn(), TransferSpeedColumn(), *more_speeds, TimeRemainingColumn()


@contextmanager
def byte_progress(description: str, *, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows bytes done, speed and, with a total, the remaining time; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        *_columns(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def token_progress(description: str) -> Iterator[Callable[[int, int, int, str], None] | None]:
    """Shows bytes done, speeds in bytes and tokens, the remaining time and a note.

    Yields the function to tell it: bytes done, of how many (0 if unknown), tokens so far, and the note; None when there
    is no terminal to show it on, where even loading rich would be wasted.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    with Progress(
        *_columns(TextColumn("{task.fields[tokens_per_second]:,.0f} tokens/s")),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # a refreshing thread would compete with those that tokenize
    ) as progress:
        task = progress.add_task(description, total=None, tokens_per_second=0.0, note="")
        started = shown = time.monotonic()

        def show(num_bytes: int, total_bytes: int, num_tokens: int, note: str) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown < _SECONDS_BETWEEN_UPDATES:
                return
            shown = now
            speed = num_tokens / (now - started)
            progress.update(
                task,
                completed=num_bytes,
                total=total_bytes or None,
                tokens_per_second=speed,
                note=note,
                refresh=True,
            )

        yield show
