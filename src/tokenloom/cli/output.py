"""Output of commands: JSON, lines and tables; signals and closed pipes that end them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any

from tokenloom.rendering.card import MOST_ROWS, first_rows
from tokenloom.rendering.words import cell_width, name_of, printable
from tokenloom.storage.secrets import redacted

if TYPE_CHECKING:
    from tokenloom.inspect.shown import Look

_UNFOLDED = 4096  # columns; wider than any path
_LEAST = 12  # columns of a shortened text
_BETWEEN = 3  # columns between two cells of a table, and one more at its end
_COLUMNS_OF_TOKEN = 8  # typical upper bound, with line breaks
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        record: printed with `--json`, see `json_text`; an iterator as one line per item.
        lines: printed without `--json`.
        status: the exit status.
    """

    record: object
    lines: str | Iterable[str]
    status: int = 0


Found = int | Answer | Iterable[Answer]
"""Returned by a command: the exit status, if it has printed already; an answer; or several, printed one by one."""


def print_answers(found: Found, *, as_json: bool) -> int:
    """Prints answers as they come; returns the exit status."""
    if isinstance(found, int):
        return found
    status = 0
    for answer in [found] if isinstance(found, Answer) else found:
        if as_json:
            for record in answer.record if isinstance(answer.record, Iterator) else [answer.record]:
                print_json(record)
        else:
            print_lines([answer.lines] if isinstance(answer.lines, str) else answer.lines)
        status = max(status, answer.status)
    return status


def print_json(value: object) -> None:
    """Prints a value as one line of JSON; see `json_text`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Returns a value as JSON in one line of ASCII.

    Dataclasses become objects of their fields, enumeration members their names, paths strings, NumPy's numbers and
    arrays numbers and lists, fractions numbers, dates text as in ISO 8601. NaN and infinity become null.
    """
    text = json.dumps(value, default=_plain)
    return json.dumps(json.loads(text, parse_constant=lambda _: None)) if "NaN" in text or "Infinity" in text else text


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (Enum, attrgetter("name")),
    (Fraction, float),
    (Mapping, dict),
    (os.PathLike, os.fspath),
    (datetime, datetime.isoformat),
)


def _plain(value: Any) -> Any:
    """Converts a value that `json` does not know."""
    if (known := next((plain for kind, plain in _PLAIN if isinstance(value, kind)), None)) is not None:
        return known(value)
    return members(value) if dataclasses.is_dataclass(value) else value.tolist()  # else of NumPy, not imported here


def members(value: Any, *names: str) -> dict[str, Any]:
    """Returns attributes of an object by name; without names, the fields of a dataclass."""
    return {name: getattr(value, name) for name in names or [field.name for field in dataclasses.fields(value)]}


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; characters that stdout cannot encode become escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, most: int | None = None
) -> Iterator[str]:
    """Yields a table as lines; columns with a heading, except the first, are aligned right.

    Of more than `most` rows, the last line sums up the rest. A narrow terminal gets the widest texts shortened in their
    middle; a pipe gets whole rows, one per line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells, console = [[*map(_in_words, row)] for row in first_rows(rows, most)], Console()
    if console.is_terminal:
        widths = [max(cell_width(str(cell)) for cell in column) for column in zip(columns, *cells, strict=True)]
        over = sum(widths) + _BETWEEN * len(columns) + 1 - console.width
        for number in sorted(range(len(columns)), key=lambda number: -widths[number]):
            if over > 0 and widths[number] > _LEAST:
                room = max(widths[number] - over, _LEAST)
                over -= widths[number] - room
                for row in cells:
                    row[number] = row[number] if isinstance(row[number], Text) else name_of(row[number], width=room)
    else:
        console = Console(width=_UNFOLDED)
    drawn = Table(title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if number and column else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(drawn)
    yield from capture.get().removesuffix("\n").split("\n")


def facts_lines(title: str, known: Mapping[str, Any], *, most: int | None = MOST_ROWS) -> Iterator[str]:
    """Yields facts, see `HasFacts`: a table of names and values, further tables, and problems.

    Facts of a nested mapping have both names; its None is "none".
    """
    plain: list[tuple[str, Any]] = []
    tables: dict[str, Any] = {}
    for name, value in _flat(known):
        if not isinstance(value, (list, tuple)):
            plain += [(name, value)] if value is not None else []
        elif value and isinstance(value[0], Mapping):
            tables[name] = value
        elif name != "problems":
            plain.append((name, ", ".join(map(str, value)) or "none"))
    yield from table((title, ""), plain) if plain else ()
    for name, each in tables.items():
        columns = [column.removeprefix("num_").replace("_", " ") for column in each[0]]
        yield from table(columns, [tuple(row.values()) for row in each], title=name, most=most)
    yield from map(printable, known.get("problems", ()))


def _flat(known: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in known.items():
        whole = before + name.removeprefix("num_").replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{whole} ")
        else:
            yield whole, "none" if before and value is None else value


def _in_words(value: Any) -> Any:
    """Returns a cell of a table; a `Text` of rich stays as it is."""
    if hasattr(value, "stylize"):
        return value
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value is None else f"{value:,}" if type(value) is int else printable(str(value))


def look_of(*, ids: bool = False, most_tokens: int | None = None) -> Look:
    """Returns the look for stdout: on a terminal about one screen per document, else all of it."""
    from rich.console import Console

    from tokenloom.inspect.shown import Look

    console, is_terminal = Console(), sys.stdout.isatty()
    width = max(console.width if is_terminal else 80, 20)
    if is_terminal:
        most_tokens = most_tokens or width * console.height // _COLUMNS_OF_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=ids, most_tokens=most_tokens)


class StoppedBySignal(KeyboardInterrupt):
    """Raised in the main thread by a signal, and handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_status: int = 128 + number


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raises the first SIGTERM or SIGHUP in the `with` block as `StoppedBySignal`; ignores those that follow.

    Closed terminals and service managers send several at once. Signals that are ignored (`nohup`) or have a handler
    stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedBySignal(number)

    ours = [each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in ours:
            signal.signal(each, stop)
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def say(message: str) -> None:
    """Prints to stderr, without secrets and terminal escapes; does nothing if stderr is closed."""
    with suppress(OSError, ValueError):
        print(printable(redacted(message)), file=sys.stderr)


def drop_output() -> None:
    """Redirects stdout to /dev/null, since it cannot be written."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
