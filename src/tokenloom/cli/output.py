"""Prints results of commands as JSON, lines and tables; handles signals and a closed stdout."""

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

_PIPE_COLUMNS = 4096  # wider than any path, so a pipe gets each row on one line
_MIN_COLUMNS = 12  # width of a shortened cell
_COLUMNS_BETWEEN = 3  # between two cells of a table row; one more at the end of the row
_COLUMNS_PER_TOKEN = 8  # a typical upper bound, which includes line breaks
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        record: value that `--json` prints as one line, see `json_text`; an iterator prints one line per item.
        lines: text printed without `--json`.
        status: exit status.
    """

    record: object
    lines: str | Iterable[str]
    status: int = 0


Answers = int | Answer | Iterable[Answer]
"""Return type of a command: one or more answers to print, or the exit status of a command that prints by itself."""


def print_answers(answers: Answers, *, as_json: bool) -> int:
    """Prints each answer as soon as it is available; returns the highest of their exit statuses."""
    if isinstance(answers, int):
        return answers
    status = 0
    for answer in [answers] if isinstance(answers, Answer) else answers:
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
    """Returns a value as one line of ASCII JSON.

    Dataclasses become objects of their fields; enum members become their names, NumPy scalars numbers, NumPy arrays
    lists, fractions numbers, paths text, and dates ISO 8601 text. NaN and infinity become null.
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
    """Converts a value that `json` cannot encode."""
    if (convert := next((plain for kind, plain in _PLAIN if isinstance(value, kind)), None)) is not None:
        return convert(value)
    return members(value) if dataclasses.is_dataclass(value) else value.tolist()  # NumPy, which is not imported here


def members(value: Any, *names: str) -> dict[str, Any]:
    """Returns the named attributes of an object as a dict; without names, all fields of a dataclass."""
    return {name: getattr(value, name) for name in names or [field.name for field in dataclasses.fields(value)]}


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; a character that stdout cannot encode is printed as its escape."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, most: int | None = None
) -> Iterator[str]:
    """Yields the lines of a table; columns with a heading are right-aligned, except the first column.

    If there are more than `most` rows, the last printed row is the sum of the omitted rows. On a narrow terminal,
    the widest cells are shortened in the middle; in a pipe, each row is one line of any length.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells, console = [[*map(_cell, row)] for row in first_rows(rows, most)], Console()
    if console.is_terminal:
        widths = [max(cell_width(str(cell)) for cell in column) for column in zip(columns, *cells, strict=True)]
        excess = sum(widths) + _COLUMNS_BETWEEN * len(columns) + 1 - console.width
        for number in sorted(range(len(columns)), key=lambda number: -widths[number]):
            if excess > 0 and widths[number] > _MIN_COLUMNS:
                width = max(widths[number] - excess, _MIN_COLUMNS)
                excess -= widths[number] - width
                for row in cells:
                    row[number] = row[number] if isinstance(row[number], Text) else name_of(row[number], width=width)
    else:
        console = Console(width=_PIPE_COLUMNS)
    drawn = Table(title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if number and column else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(drawn)
    yield from capture.get().removesuffix("\n").split("\n")


def facts_lines(title: str, facts: Mapping[str, Any], *, most: int | None = MOST_ROWS) -> Iterator[str]:
    """Yields the lines of a summary (see `HasFacts`): a table of names and values, a table per list, then problems.

    Nested mappings are flattened to "outer inner" names. None is omitted at the top level, else printed as "none".
    """
    plain: list[tuple[str, Any]] = []
    tables: dict[str, Any] = {}
    for name, value in _flat(facts):
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
    yield from map(printable, facts.get("problems", ()))


def _flat(facts: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        whole = outer + name.removeprefix("num_").replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{whole} ")
        else:
            yield whole, "none" if outer and value is None else value


def _cell(value: Any) -> Any:
    """Formats a value for a table."""
    if hasattr(value, "stylize"):  # `rich.text.Text`, without its import
        return value
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value is None else f"{value:,}" if type(value) is int else printable(str(value))


def look_of(*, ids: bool = False, most_tokens: int | None = None) -> Look:
    """Returns the `Look` for stdout: on a terminal, about one screen of tokens per document; in a pipe, all tokens."""
    from rich.console import Console

    from tokenloom.inspect.shown import Look

    console, is_terminal = Console(), sys.stdout.isatty()
    width = max(console.width if is_terminal else 80, 20)
    if is_terminal:
        most_tokens = most_tokens or width * console.height // _COLUMNS_PER_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=ids, most_tokens=most_tokens)


class StoppedBySignal(KeyboardInterrupt):
    """The exception that SIGTERM and SIGHUP raise in the main thread, handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_status: int = 128 + number


@contextmanager
def raise_signals() -> Iterator[None]:
    """Raises `StoppedBySignal` on the first SIGTERM or SIGHUP in the `with` block, and ignores later signals.

    Closed terminals and service managers send several signals at once. A signal with a handler keeps that handler.
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
    """Prints a message to stderr with secrets redacted and control characters escaped; ignores a closed stderr."""
    with suppress(OSError, ValueError):
        print(printable(redacted(message)), file=sys.stderr)


def discard_stdout() -> None:
    """Redirects stdout to /dev/null, so that the flush at interpreter exit does not fail again."""
    with suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
