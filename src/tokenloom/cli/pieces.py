"""Pieces of documents and samples as text, each under a heading."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from tokenloom.rendering.plain import printable


class Shown(Protocol):
    """A piece that can be shown."""

    @property
    def text(self) -> str:
        """The text of the piece."""

    def heading(self) -> str:
        """Returns one line that says what this is."""


def print_pieces(pieces: Sequence[Shown], *, most_characters: int | None = None) -> None:
    """Prints pieces under a heading each; long texts shortened in the middle if asked."""
    for piece in pieces:
        text = piece.text
        if most_characters is not None and len(text) > most_characters:
            half = most_characters // 2
            text = f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
        print(visible(f"──── {piece.heading()} ────"))
        print(visible(text))


def visible(text: str) -> str:
    """Returns text that cannot drive a terminal and that stdout can take: all else is shown as escapes."""
    encoding = sys.stdout.encoding or "ascii"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)
