"""Formats texts, names and numbers for display: escapes, line breaks, short names, units."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO

Piece = tuple[str, str]
"""(text, style); the style is "" or in rich's syntax, such as "bold red"."""

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that have no glyph or change the layout, such as control characters."""

_JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner, which Persian, Indic scripts and emoji need; neither changes the layout."""

_UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6))
_BYTES = ((" TB", 10**12), (" GB", 10**9), (" MB", 10**6), (" kB", 10**3))
_LONGEST_NAME = 24


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Replaces characters without a glyph, except the characters in `keep`, by escapes such as `\x1b` or `\u202e`.

    Example:
        >>> printable("a\x1b[31mb\u202ec\n", keep="")
        'a\\x1b[31mb\\u202ec\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in keep or _has_glyph(char) else char.encode("unicode_escape").decode() for char in text
    )


def _has_glyph(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) not in _HIDDEN


def cell_width(text: str) -> int:
    r"""Returns the number of terminal columns of a text: wide characters take two, combining marks none.

    Example:
        >>> cell_width("naïve"), cell_width("漢字"), cell_width("e\u0301")
        (5, 4, 1)
    """
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def lines_of(text: str | Sequence[Piece], width: int, *, colour: bool = False) -> Iterator[str]:
    """Yields the lines of a text, wrapped to `width` columns; breaks long words, omits white space at line ends.

    With `colour`, writes the styles as escape sequences. Pass the text through `printable` first.

    Example:
        >>> list(lines_of("one two three", 8))
        ['one two', 'three']
    """
    from rich.console import Console
    from rich.text import Text

    output = StringIO()
    console = Console(
        file=output,
        width=width,
        height=1,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=False,
    )
    console.print(Text(text) if isinstance(text, str) else Text.assemble(*text), overflow="fold", highlight=False)
    yield from (line.rstrip(" ") for line in output.getvalue().removesuffix("\n").split("\n"))


def short(number: int) -> str:
    """Formats a number in at most eight characters, rounded if it is large.

    Example:
        >>> short(999_999), short(1_234_567), short(900 * 10**9)
        ('999,999', '1.23M', '900B')
    """
    return _in_units(number, _UNITS) or f"{number:,}"


def _in_units(number: int, units: Sequence[tuple[str, int]]) -> str | None:
    for unit, power in units:
        if number >= power:
            return f"{number / power:.3g}{unit}" if number < 1000 * power else f"{number // power:,}{unit}"
    return None


def name_of(text: str, *, width: int = _LONGEST_NAME) -> str:
    """Shortens a name to at most `width` characters; omits the middle.

    Example:
        >>> name_of("stackexchange_2024_part_17", width=16)
        'stackexc…part_17'
    """
    half = width // 2
    return text if len(text) <= width else f"{text[:half]}…{text[len(text) - (width - half - 1) :]}"


def counted(number: int, thing: str) -> str:
    """Formats a count with its noun, such as "1 pair" and "1,000 passes"."""
    plural = f"{thing}es" if thing.endswith(("s", "ch")) else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"


def size(num_bytes: int) -> str:
    """Formats a number of bytes in bytes, kB, MB, GB or TB.

    Example:
        >>> size(999), size(1_234_567)
        ('999 bytes', '1.23 MB')
    """
    return _in_units(num_bytes, _BYTES) or counted(num_bytes, "byte")


WITHOUT = (
    ("EOD masked", "eod_masked"),
    ("prompt", "prompt"),
    ("denied", "denied"),
    ("padding id in the data", "pad_id"),
    ("first token of a pass or text", "first_token"),
    ("cut off by fill in the middle", "rearranged"),
    ("conversations truncated", "truncated"),
    ("with or without loss: not counted", "not_counted"),
)
"""(text, key) of the ledger counts of tokens that are in samples and have no loss, or may have loss."""

NEVER = (
    ("dropped tail", "dropped_tail"),
    ("dropped conversations", "dropped_conversations"),
    ("given up at another sequence length", "given_up"),
)
"""(text, key) of the ledger counts of tokens that are in no sample."""

LEFT = (("left to later stages", "handed_on"), ("not reached yet", "not_reached"))
"""(text, key) of the ledger counts of tokens that later samples will contain."""

SLOTS = (
    *(("with loss", "with_loss"), ("EOD masked", "eod_masked"), ("prompt", "prompt"), ("denied", "denied")),
    *(("label is the padding id", "pad_id"), ("last token, without a label", "no_label")),
    *(("padding", "padding"), ("not counted", "not_counted")),
)
"""(text, key) of the ledger counts of slots in samples, by the content of the slot."""


def ledger_columns(tokens: Mapping[str, int]) -> tuple[int, int, int, int, int]:
    """Sums token counts of a ledger row: (available, read with loss, read without loss, never read, left for later)."""
    came_in = tokens["brought"] + tokens["offered"] + tokens["read_twice"]
    without, never, left = (sum(tokens[name] for _, name in names) for names in (WITHOUT, NEVER, LEFT))
    return came_in, tokens["with_loss"], without, never, left
