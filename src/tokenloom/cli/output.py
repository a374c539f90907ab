"""What commands print: one object of JSON for programs; lines, tables, documents and samples for people."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from tokenloom.rendering.card import first_rows
from tokenloom.rendering.words import cell_width, lines_of, name_of, printable
from tokenloom.setting_types import Count

if TYPE_CHECKING:
    from tokenloom.inspect.shown import Look

_UNFOLDED = 4096
"""Columns; wider than any path."""

_LEAST_FIRST = 20
"""Columns that a shortened name keeps."""

_BETWEEN = 3
"""Columns between two cells of a table, and one more at its end."""

_COLUMNS_OF_TOKEN = 8
"""Columns that a token takes at most, as a rule, with line breaks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found.

    Attributes:
        record: what `--json` prints, see `json_text`.
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
            print_json(answer.record)
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


def _plain(value: Any) -> Any:
    """Returns what `json` does not know as what it does."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return members(value)
    if hasattr(value, "tolist"):  # NumPy's, which most commands have no need to import
        return value.tolist()
    message = f"expected something that JSON can tell, found {type(value).__name__}"
    raise TypeError(message)


def members(value: Any, *names: str) -> dict[str, Any]:
    """Returns attributes of an object by name; without names, the fields of a dataclass."""
    return {name: getattr(value, name) for name in names or [field.name for field in dataclasses.fields(value)]}


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; what stdout cannot write becomes escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Iterator[str]:
    """Yields a table as lines; columns with a heading are aligned right, but the first. Texts are shown as they are.

    On a terminal that is too narrow, names in the first column are shortened in their middle, or rows become blocks. A
    program that reads stdout gets each row on a line, whole.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:  # lines that a program reads are not folded
        console = Console(width=_UNFOLDED)
    if (fitting := shortened(columns, rows, console.width)) is None:
        yield from () if title is None else (title,)
        yield from blocks(columns, rows, console.width)
        return
    drawn = Table(title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if number and column else "left", overflow="fold")
    for row in fitting:
        drawn.add_row(*map(Text, row))
    with console.capture() as capture:
        console.print(drawn)
    yield from capture.get().removesuffix("\n").split("\n")


def facts_lines(title: str, known: Mapping[str, Any]) -> Iterator[str]:
    """Yields facts, see `HasFacts`: a table of names and values, further tables, and problems."""
    tables = {name: value for name, value in known.items() if isinstance(value, list)}
    plain = {name: value for name, value in known.items() if name not in tables and value is not None}
    problems = tables.pop("problems", [])
    rows = [(name.removeprefix("num_").replace("_", " "), _in_words(value)) for name, value in plain.items()]
    yield from table((title, ""), rows)
    for name, each in tables.items():
        if each:
            cells = [tuple(map(_in_words, row.values())) for row in first_rows(each)]
            yield from table(tuple(each[0]), cells, title=name)
    yield from map(printable, problems)


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value is None else f"{value:,}" if type(value) is int else printable(str(value))


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


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """How documents and samples are drawn.

    Attributes:
        all: all tokens, not only those that fit a terminal's screen.
        width: columns of a line (default: the terminal's, or 80).
    """

    GROUP: ClassVar[str] = "how it is shown; NO_COLOR and FORCE_COLOR say whether in colour"

    all: bool = False
    width: Count | None = None


def look_of(options: LookOptions | None = None, *, ids: bool = False, most_tokens: int | None = None) -> Look:
    """Returns how to draw on stdout: on a terminal about a screen of each document, unless all is asked for."""
    from rich.console import Console

    from tokenloom.inspect.shown import Look

    given, console, is_terminal = options or LookOptions(), Console(), sys.stdout.isatty()
    width = max(given.width or (console.width if is_terminal else 80), 20)
    if is_terminal and not given.all:
        most_tokens = most_tokens or width * console.height // _COLUMNS_OF_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=ids, most_tokens=most_tokens)
