"""Documents and samples on stdout: in colour on a terminal, plain in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_terminal import Look, shown_lines
from tokenloom.rendering.words import plain_text
from tokenloom.setting_types import Count

_COLUMNS_OF_TOKEN = 8
"""Columns that a token takes at most, as a rule, with line breaks."""


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

    given, console, is_terminal = options or LookOptions(), Console(), sys.stdout.isatty()
    width = max(given.width or (console.width if is_terminal else 80), 20)
    if is_terminal and not given.all:
        most_tokens = most_tokens or width * console.height // _COLUMNS_OF_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=ids, most_tokens=most_tokens)


def print_shown(shown: Shown, look: Look) -> None:
    """Prints a document or a sample."""
    print_lines(shown_lines(shown, look))


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines; what stdout cannot write becomes escapes."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def visible(text: str) -> str:
    """Returns text that cannot drive a terminal and that stdout can take: all else is shown as escapes."""
    return plain_text(text, sys.stdout.encoding or "ascii", keep="\n\t")
