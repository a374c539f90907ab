"""Parses and checks numbers of users strictly.

Numbers are ASCII digits with at most one dot, a sign and an exponent. Other numbers of Python (`nan`, `inf`, `1_000`,
digits of other scripts) are refused.

All functions raise `ConfigError`, whose message begins with `where`, the text's place, or names the setting `name`.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
from dataclasses import dataclass
from decimal import Decimal

from tokenloom.errors import ConfigError

_BLANKS = " \t\r\n"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BYTES = re.compile(r"([0-9]{1,40}(?:\.[0-9]{0,40})?) ?([KMGT]i?B)?")
_UNITS = {None: 1} | {
    f"{letter}{kind}B": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for kind, base in (("", 1000), ("i", 1024))
}
_LARGEST = 2**63 - 1
_MOST_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a list in a text.

    Attributes:
        text: the text, stripped of blanks; may be empty.
        number: its number in the list, from 1.
        column: its first character in the text, from 1.
    """

    text: str
    number: int
    column: int

    @property
    def place(self) -> str:
        """Number, text and column, for messages."""
        return f"item {self.number} {quoted(self.text)} at column {self.column}"


def quoted(text: str) -> str:
    """Returns the `repr` of a text, truncated, for messages."""
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def items_of(text: str, *, separators: str = ",", blanks_separate: bool = False) -> list[Item]:
    """Returns the items of a list, also empty ones; blanks are one empty item.

    Example:
        >>> [(item.text, item.column) for item in items_of("90, abc,,5")]
        [('90', 1), ('abc', 5), ('', 9), ('5', 10)]

    Args:
        text: items with separators between and blanks around them.
        separators: characters that separate items.
        blanks_separate: whether blanks alone separate items, too.
    """
    between = f"[{_BLANKS}]*[{re.escape(separators)}][{_BLANKS}]*{f'|[{_BLANKS}]+' if blanks_separate else ''}"
    first = len(text) - len(text.lstrip(_BLANKS))
    body = text.strip(_BLANKS)
    bounds = [found.span() for found in re.finditer(between, body)]
    starts = [0, *(stop for _, stop in bounds)]
    stops = [*(start for start, _ in bounds), len(body)]
    return [
        Item(text=body[start:stop], number=number, column=first + start + 1)
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True), 1)
    ]


def parse_number(text: str, where: str) -> float:
    """Converts text to a number in double precision.

    Example:
        >>> parse_number("0.25", "share")
        0.25
    """
    if not _NUMBER.fullmatch(text):
        raise ConfigError(f"{where} is {'empty' if not text else 'no number'}", hint=_spelling_hint(text))
    number = float(text)
    if math.isinf(number):
        raise ConfigError(f"{where} is too large for double precision")
    return number


def parse_integer(text: str, where: str, *, at_least: int | None = None) -> int:
    """Converts text to an integer of 64 bits, of at least `at_least`."""
    if not _INTEGER.fullmatch(text):
        raise ConfigError(f"{where} is {'empty' if not text else 'no whole number'}", hint=_spelling_hint(text))
    if len(text) > 40 or abs(number := int(text)) >= 2**64:
        raise ConfigError(f"{where} does not fit 64 bits")
    if at_least is not None and number < at_least:
        raise ConfigError(f"{where} must be {at_least} or more")
    return number


def parse_bytes(text: str) -> int:
    """Converts text to a number of bytes, 1 or more, rounded down.

    Units are KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of 1024).

    Example:
        >>> parse_bytes("1.5 GiB")
        1610612736
    """
    found = _BYTES.fullmatch(text)
    count = 0 if found is None else int(Decimal(found[1]) * _UNITS[found[2]])
    if not 1 <= count <= _LARGEST:
        hint = None if found is None else f"from 1 to {_LARGEST} bytes"
        raise ConfigError(f"{quoted(text)} is no number of bytes such as 500MB or 10GiB", hint=hint)
    return count


def bytes_text(num_bytes: int) -> str:
    """Formats a number of bytes for `parse_bytes`, in the largest unit that divides it.

    Example:
        >>> bytes_text(1 << 30), bytes_text(64_000)
        ('1GiB', '64KB')
    """
    size, unit = max((size, unit or "") for unit, size in _UNITS.items() if num_bytes % size == 0)
    return f"{num_bytes // size}{unit}"


def parse_percentage(text: str, where: str) -> float:
    """Converts a percentage such as `0.1%` to a share from 0 to 1."""
    if not text.endswith("%"):
        raise ConfigError(f"{where} is no percentage such as 0.1%")
    percent = parse_number(text[:-1], where)
    if not 0 <= percent <= 100:
        raise ConfigError(f"{where} is not from 0% to 100%")
    return percent / 100


def number_or_none(text: str, where: str) -> float | None:
    """Converts text to a number; None for other text, such as a path.

    NaN and infinity are returned, for the caller's range check. Other numbers of Python that `parse_number` refuses are
    ambiguous, and refused.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return parse_number(stripped, where)
    try:
        number = float(stripped)
    except ValueError:
        return None
    if not math.isfinite(number) and stripped.isascii():
        return number
    message = f"{where} is no number of plain digits"
    raise ConfigError(message, hint=_spelling_hint(stripped) or f"a path of that name is `./{stripped}`")


def finite_or_none(value: object) -> float | None:
    """Returns a finite number of any type as a float; None for anything else, including True, False and texts."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def wrong_value(name: str, needed: str, value: object, *, hint: str | None = None) -> ConfigError:
    """Returns the error of a value; `name` is that of a setting, or words for what has the value.

    Example:
        >>> wrong_value("num_workers", "0 or more", -1).message
        '`num_workers`: must be 0 or more, got -1'
    """
    return ConfigError(f"{f'`{name}`' if name.isidentifier() else name}: must be {needed}, got {value!r}", hint=hint)


def checked_integer(
    name: str, value: object, *, at_least: int | None = None, below: int | None = None, hint: str | None = None
) -> int:
    """Returns an integer of any type in [at_least, below) as an int; texts, floats, True and False are refused.

    `hint` is that of a value out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise wrong_value(name, "an integer", value)
    if below is not None and not (at_least or 0) <= number < below:
        raise wrong_value(name, f"in [{at_least or 0}, {_power(below)})", number, hint=hint)
    if at_least is not None and number < at_least:
        raise wrong_value(name, f"{at_least} or more", number, hint=hint)
    return number


def check_count(name: str, value: object) -> None:
    """Checks that a value is an int, and no subclass, from 0 to 2**63 - 1."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise wrong_value(name, "an integer of 0 or more", value)


def checked_number(name: str, value: object, *, at_least: float | None = None, above: float | None = None) -> float:
    """Returns a finite number of any type, of at least `at_least` and above `above`, as a float; refuses bools."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_value(name, "a number", value)
    number = finite_or_none(value)
    if number is None or (above is not None and number <= above) or (at_least is not None and number < at_least):
        bounds = [f"above {above:g}"] if above is not None else []
        bounds += [f"{at_least:g} or more"] if at_least is not None else []
        raise wrong_value(name, "a finite number" if number is None else " and ".join(bounds), value)
    return number


def _power(number: int) -> str:
    exponent = number.bit_length() - 1
    return f"2**{exponent}" if exponent >= 16 and number == 1 << exponent else str(number)


def _spelling_hint(text: str) -> str | None:
    likely = "_" in text or "," in text or not text.isascii()
    return "write it in the digits 0 to 9, with a dot before decimals" if likely else None
