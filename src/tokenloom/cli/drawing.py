"""Documents and samples on stdout: in colour on a terminal, plain in a log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from tokenloom.cli.values import count
from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_terminal import Look, shown_lines
from tokenloom.rendering.words import plain_text

_COLUMNS_OF_TOKEN = 8
"""Columns that a token takes at most, as a rule, with line breaks."""


def add_look(parser: argparse.ArgumentParser, *, has_ids: bool = True) -> None:
    """Declares how documents and samples are drawn, and whether that may be with ids."""
    group = parser.add_argument_group("how it is shown; NO_COLOR and FORCE_COLOR say whether in colour")
    if has_ids:
        group.add_argument("--ids", action="store_true", help="write the id of each token below it")
    group.add_argument("--all", action="store_true", help="all tokens, not only those that fit a terminal's screen")
    group.add_argument("--width", type=count, metavar="N", help="columns of a line (default: the terminal's, or 80)")


def look_of(options: argparse.Namespace | None = None, *, most_tokens: int | None = None) -> Look:
    """Returns how to draw on stdout: on a terminal about a screen of each document, unless all is asked for."""
    from rich.console import Console

    given, console, is_terminal = vars(options) if options else {}, Console(), sys.stdout.isatty()
    width = max(given.get("width") or (console.width if is_terminal else 80), 20)
    if is_terminal and not given.get("all"):
        most_tokens = most_tokens or width * console.height // _COLUMNS_OF_TOKEN
    has_colour = console.color_system is not None and not console.no_color
    return Look(width=width, colour=has_colour, ids=given.get("ids", False), most_tokens=most_tokens)


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
