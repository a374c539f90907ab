"""Numbers and names in as many characters as a person reads at a glance."""

from __future__ import annotations

_UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6))
_BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_LONGEST_NAME = 24


def short(number: int) -> str:
    """Returns a number in at most eight characters, rounded where it is large.

    Example:
        >>> short(999_999), short(1_234_567), short(900 * 10**9)
        ('999,999', '1.23M', '900B')
    """
    for suffix, power in _UNITS:
        if number >= power:
            return f"{number / power:.3g}{suffix}" if number < 1000 * power else f"{number // power:,}{suffix}"
    return f"{number:,}"


def name_of(text: str, *, width: int = _LONGEST_NAME) -> str:
    """Returns a name that fits a column of a table: of a long one, how it begins and ends.

    Example:
        >>> name_of("stackexchange_2024_part_17", width=16)
        'stackexc…part_17'
    """
    half = width // 2
    return text if len(text) <= width else f"{text[:half]}…{text[len(text) - (width - half - 1) :]}"


def counted(number: int, thing: str) -> str:
    """Returns a number of things in words, such as "1 pair" and "1,000 passes"."""
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"


def size(num_bytes: int) -> str:
    """Returns a size in bytes, kB, MB, GB or TB.

    Example:
        >>> size(999), size(1_234_567)
        ('999 bytes', '1.23 MB')
    """
    for unit, power in _BYTES:
        if num_bytes >= power:
            return f"{num_bytes / power:.3g} {unit}" if num_bytes < 1000 * power else f"{num_bytes // power:,} {unit}"
    return counted(num_bytes, "byte")
