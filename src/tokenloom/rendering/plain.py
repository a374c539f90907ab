"""Text of strangers, made harmless: it cannot drive a terminal, nor turn a page around."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of Unicode that have no glyph of their own, or move others: control, format, line separators."""

_JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner: Persian, Indic scripts and emoji are written with them, and they move nothing."""


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Returns text in which all that has no glyph is written as an escape, such as `\x1b` or `\u202e`.

    Args:
        text: any text.
        keep: characters that stay as they are nevertheless.

    Example:
        >>> printable("a\x1b[31mb\u202ec\n", keep="")
        'a\\x1b[31mb\\u202ec\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or _has_glyph(char) or char in keep else escaped(char) for char in text)


def escaped(char: str) -> str:
    r"""Returns a character as Python writes it in ASCII: `\n`, `\x00`, `\u202e`."""
    return char.encode("unicode_escape").decode()


def _has_glyph(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in _HIDDEN
