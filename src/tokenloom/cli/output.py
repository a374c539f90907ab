"""What commands print: one object of JSON for programs; lines and tables for people. And how they end that are stopped,
by a signal, or by nobody reading any more.
"""

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
_LEAST = 12  # columns that a shortened text keeps
_BETWEEN = 3  # columns between two cells of a table, and one more at its end
_COLUMNS_OF_TOKEN = 8  # that a token takes at most, as a rule, with line breaks
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found.

    Attributes:
        record: what `--json` prints, see `json_text`; of an iterator each, a line each.
        lines: what is printed without `--json`.
        status: the exit status.
    """

    record: object
    lines: str | Iterable[str]
    status: int = 0


Found = int | Answer | Iterable[Answer]
"""What a command returns: the exit status, if it prints for itself; an answer; or several, as it finds them."""


def print_answers(found: Found, *, as_json: bool) -> int:
    """Prints what a command found, as it finds it; returns the exit status."""
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


def print_json(value: Mapping[str, Any] | object) -> None:
    """Prints an object, or a dataclass as one, as a line of JSON; see `json_text`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Returns a value as JSON in one line of ASCII.

    Dataclasses become objects of their fields, members of enumerations their names, paths strings, NumPy's numbers and
    arrays numbers and lists, fractions numbers, dates text as in ISO 8601. What no JSON number can be (NaN and the
    infinities) becomes null.
    """
    text = json.dumps(value, default=_plain)
    return json.dumps(json.loads(text, parse_constant=lambda _: None)) if "NaN" in text or "Infinity" in text else text


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    *((Enum, attrgetter("name")), (Fraction, float), (Mapping, dict), (os.PathLike, os.fspath)),
    *((datetime, datetime.isoformat),),
)


def _plain(value: Any) -> Any:
    """Returns what `json` does not know as what it does."""
    if (known := next((plain for kind, plain in _PLAIN if isinstance(value, kind)), None)) is not None:
        return known(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return members(value)
    return value.tolist()  # NumPy's, which most commands have no need to import


def members(value: Any, *names: str) -> dict[str, Any]:
    """Returns attributes of an object by name; without names, the fields of a dataclass."""
    return {name: getattr(value, name) for name in names or [field.name for field in dataclasses.fields(value)]}


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; what stdout cannot write becomes escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, most: int | None = None
) -> Iterator[str]:
    """Yields a table as lines; columns with a heading are aligned right, but the first.

    Of more than `most` rows, the last is the sum of those that are not shown.
    On a terminal that is too narrow, the widest texts are shortened in their middle. A program that reads stdout gets
    each row on a line, whole.
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
    else:  # lines that a program reads are not folded
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

    Facts of a mapping within have both names, and "none" where they are None.
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
    """Returns a cell of a table; what has a style of its own, a `Text` of rich, is one."""
    if hasattr(value, "stylize"):
        return value
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value is None else f"{value:,}" if type(value) is int else printable(str(value))


def look_of(*, ids: bool = False, most_tokens: int | None = None) -> Look:
    """Returns how to draw on stdout: on a terminal about a screen of each document, for other programs all of it."""
    from rich.console import Console

    from tokenloom.inspect.shown import Look

    console, is_terminal = Console(), sys.stdout.isatty()
    width = max(console.width if is_terminal else 80, 20)
    if is_terminal:
        most_tokens = most_tokens or width * console.height // _COLUMNS_OF_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=ids, most_tokens=most_tokens)


class StoppedBySignal(KeyboardInterrupt):
    """What a signal raises in the main thread; whatever cleans up after Ctrl-C cleans up after it too."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_status: int = 128 + number


@contextmanager
def signals_raised() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into `StoppedBySignal` while the `with` block lasts; further ones are ignored then.

    A closed terminal, or a service manager, sends several at once, which are one wish to stop.

    A signal that is ignored, as `nohup` has it, or that somebody else handles, stays as it is.
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
    """Prints to stderr, without secrets and without what drives a terminal, as names of files and lines of them may
    hold, if that is still there: a closed terminal is not."""
    with suppress(OSError, ValueError):
        print(printable(redacted(message)), file=sys.stderr)


def drop_output() -> None:
    """Lets go of what was printed and of what is still to be: it cannot be written."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
