"""Lines for a terminal: widths in columns, styles as escape sequences, words folded."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from tokenloom.rendering.plain import escaped, printable

_WITHOUT_WIDTH = frozenset({"Mn", "Me", "Cf"})
"""Categories of Unicode that take no column: marks on the character before, and joiners."""

_JAMO = range(0x1160, 0x1200)
"""Vowels and final consonants of Hangul, which stand in the syllable before them."""

RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text in one style.

    Attributes:
        text: harmless text without line breaks, see `plain_text`.
        style: parameters of the escape sequence that selects graphic rendition, such as "1;32"; "" for none.
    """

    text: str
    style: str = ""


def cell_width(text: str) -> int:
    r"""Returns how many columns a text takes: wide characters two, marks and joiners none.

    Emoji that are joined count as each of them: terminals differ, and a line may end early but never too late.

    Example:
        >>> cell_width("naïve"), cell_width("漢字"), cell_width("e\u0301")
        (5, 4, 1)
    """
    return len(text) if text.isascii() else sum(map(_width_of, text))


def apart(text: str) -> str:
    r"""Returns text that joins nothing before it: a joiner at its begin is an escape, a mark stands on a dotted circle.

    Example:
        >>> apart("a"), apart("\u200d"), apart("\u0301a") == "\u25cc\u0301a"
        ('a', '\\u200d', True)
    """
    if not text or _width_of(text[0]):
        return text
    return escaped(text[0]) + apart(text[1:]) if unicodedata.category(text[0]) == "Cf" else f"\u25cc{text}"


def plain_text(text: str, encoding: str, *, keep: str = "") -> str:
    """Returns text that cannot drive a terminal and that an encoding can write: all else becomes escapes."""
    return printable(text, keep=keep).encode(encoding, "backslashreplace").decode(encoding)


def folded(pieces: Iterable[Piece], width: int) -> Iterator[list[Piece]]:
    """Yields pieces as lines of at most `width` columns, broken after a space where one is in the last half of a line.

    Args:
        pieces: what to write.
        width: columns, at least 2; 0 for one line, however long.
    """
    cells: list[tuple[str, str]] = []
    used = 0
    for char, style in ((char, piece.style) for piece in pieces for char in piece.text):
        wide = _width_of(char)
        while width and wide and cells and used + wide > width:
            kept = _break_after(cells, width)
            yield _joined(cells[:kept])
            cells = cells[kept:]
            used = sum(_width_of(held) for held, _ in cells)
        cells.append((char, style))
        used += wide
    if cells:
        yield _joined(cells)


def written(line: Iterable[Piece], *, colour: bool) -> str:
    """Returns a line with its styles as escape sequences, or without them."""
    if not colour:
        return "".join(piece.text for piece in line)
    return "".join(f"\x1b[{piece.style}m{piece.text}{RESET}" if piece.style else piece.text for piece in line)


def _width_of(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.category(char) in _WITHOUT_WIDTH or ord(char) in _JAMO:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _break_after(cells: list[tuple[str, str]], width: int) -> int:
    """Returns how many of the cells of a full line stay on it."""
    column = sum(_width_of(char) for char, _ in cells)
    for number in range(len(cells), 0, -1):
        if column * 2 < width:
            break
        if cells[number - 1][0] == " " and all(_width_of(char) for char, _ in cells[number : number + 1]):
            return number  # a mark on the space stays with it
        column -= _width_of(cells[number - 1][0])
    return len(cells)


def _joined(cells: list[tuple[str, str]]) -> list[Piece]:
    return [Piece("".join(char for char, _ in same), style) for style, same in groupby(cells, key=lambda cell: cell[1])]
