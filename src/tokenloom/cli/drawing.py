"""Documents and samples on stdout: in colour on a terminal, plain in a log."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import Any

from tokenloom.cli.values import whole_number
from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_terminal import Look, shown_lines
from tokenloom.rendering.terminal import plain_text

_WIDTH = 80
"""Columns where there is no terminal."""

_NARROWEST = 20
_COLUMNS_OF_TOKEN = 8
"""Columns that a token takes at most, as a rule, with line breaks."""


def add_look(parser: argparse.ArgumentParser, *, has_ids: bool = True) -> None:
    """Declares how documents and samples are drawn.

    Args:
        parser: parser of the command.
        has_ids: whether tokens can be drawn with their ids.
    """
    group = parser.add_argument_group("how it is shown")
    if has_ids:
        group.add_argument("--ids", action="store_true", help="write the id of each token below it")
    group.add_argument("--all", action="store_true", help="all tokens, not only those that fit a terminal's screen")
    group.add_argument(
        "--width",
        type=whole_number,
        metavar="N",
        help="columns of a line, 0 for no limit (default: the terminal's, 80 where there is none)",
    )
    group.add_argument(
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="colours, or marks that say the same (default auto: as NO_COLOR, FORCE_COLOR or the terminal say)",
    )


def look_of(options: argparse.Namespace) -> Look:
    """Returns how to draw on stdout: on a terminal about a screen of each document, unless all is asked for."""
    columns, rows = shutil.get_terminal_size((_WIDTH, 24))
    most = None if options.all or not sys.stdout.isatty() else max(columns * rows // _COLUMNS_OF_TOKEN, 2)
    return _look(options.color, width=options.width, ids=vars(options).get("ids", False), most_tokens=most)


def print_shown(shown: Shown, look: Look | None = None) -> None:
    """Prints a document or a sample; by default as it is best for where stdout leads."""
    for line in shown_lines(shown, _look("auto") if look is None else look):
        print(line)


def short_look(most_tokens: int) -> Look:
    """Returns how to draw on stdout, with at most so many tokens of a document."""
    return _look("auto", most_tokens=most_tokens)


def visible(text: str) -> str:
    """Returns text that cannot drive a terminal and that stdout can take: all else is shown as escapes."""
    return plain_text(text, sys.stdout.encoding or "ascii", keep="\n\t")


def _look(color: str, *, width: int | None = None, **others: Any) -> Look:
    is_terminal = sys.stdout.isatty()
    if width is None:
        width = max(shutil.get_terminal_size((_WIDTH, 24)).columns, _NARROWEST) if is_terminal else _WIDTH
    return Look(
        width=width,
        colour=color == "always" or (color == "auto" and _wants_colour(is_terminal=is_terminal)),
        encoding=sys.stdout.encoding or "ascii",
        **others,
    )


def _wants_colour(*, is_terminal: bool) -> bool:
    """Whether stdout is to be coloured where no option says; what forbids colours counts more than what asks for them.

    NO_COLOR and FORCE_COLOR count if they are not empty; CLICOLOR forbids with 0, CLICOLOR_FORCE asks with all else.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb" and os.environ.get("CLICOLOR") != "0"
