"""Strict parsing and validation of numbers that users write.

A number consists of ASCII digits with an optional sign, decimal point and exponent. Other texts that `float` accepts
(`nan`, `inf`, `1_000`, digits of other scripts) are errors.

Invalid numbers raise `ConfigError`. The error message begins with the argument `where` or `name` of the function.
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
    """An item of a list such as "90, abc,,5", and the item's location.

    Attributes:
        text: the item without surrounding whitespace; may be empty.
        number: index of the item in the list, counted from 1.
        column: column of the item's first character in the text of the list, counted from 1.
    """

    text: str
    number: int
    column: int

    @property
    def place(self) -> str:
        """The item and its location for error messages, such as "item 2 'abc' at column 4"."""
        return f"item {self.number} {quoted(self.text)} at column {self.column}"


def quoted(text: str) -> str:
    """Returns the `repr` of the first 60 characters of a text, for error messages."""
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def items_of(text: str, *, separators: str = ",", blanks_separate: bool = False) -> list[Item]:
    """Splits a text at separators into items, including empty items; an empty text becomes one empty item.

    Each character of `separators` is a separator; with `blanks_separate`, whitespace is a separator, too.

    Example:
        >>> [(item.text, item.column) for item in items_of("90, abc,,5")]
        [('90', 1), ('abc', 5), ('', 9), ('5', 10)]
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
    """Parses a finite number in double precision.

    Example:
        >>> parse_number("0.25", "share")
        0.25
    """
    if not _NUMBER.fullmatch(text):
        raise ConfigError(f"{where} is {'empty' if not text else 'not a number'}", hint=_spelling_hint(text))
    number = float(text)
    if math.isinf(number):
        raise ConfigError(f"{where} is too large for double precision")
    return number


def parse_integer(text: str, where: str, *, at_least: int | None = None) -> int:
    """Parses an integer in (-2**64, 2**64) that is at least `at_least`."""
    if not _INTEGER.fullmatch(text):
        raise ConfigError(f"{where} is {'empty' if not text else 'not an integer'}", hint=_spelling_hint(text))
    if len(text) > 40 or abs(number := int(text)) >= 2**64:
        raise ConfigError(f"{where} does not fit in 64 bits")
    if at_least is not None and number < at_least:
        raise ConfigError(f"{where} must be {at_least} or more")
    return number


def parse_bytes(text: str) -> int:
    """Parses a size such as `500MB`; returns the number of bytes, rounded down. The result must be in [1, 2**63).

    Units are KB, MB, GB and TB (powers of 1000), and KiB, MiB, GiB and TiB (powers of 1024).

    Example:
        >>> parse_bytes("1.5 GiB")
        1610612736
    """
    found = _BYTES.fullmatch(text)
    count = 0 if found is None else int(Decimal(found[1]) * _UNITS[found[2]])
    if found is None:
        raise ConfigError(f"must be a size such as 500MB or 10GiB, got {quoted(text)}")
    if not 1 <= count <= _LARGEST:
        raise ConfigError(f"must be in [1, 2**63) bytes, got {quoted(text)}")
    return count


def bytes_text(num_bytes: int) -> str:
    """Formats a number of bytes in the syntax of `parse_bytes`, with the largest unit that divides the number evenly.

    Example:
        >>> bytes_text(1 << 30), bytes_text(64_000)
        ('1GiB', '64KB')
    """
    size, unit = max((size, unit or "") for unit, size in _UNITS.items() if num_bytes % size == 0)
    return f"{num_bytes // size}{unit}"


def parse_percentage(text: str, where: str) -> float:
    """Parses a percentage such as `0.1%`; returns the share, in [0, 1]."""
    if not text.endswith("%"):
        raise ConfigError(f"{where} must be a percentage such as 0.1%")
    percent = parse_number(text[:-1], where)
    if not 0 <= percent <= 100:
        raise ConfigError(f"{where} must be between 0% and 100%")
    return percent / 100


def number_or_none(text: str, where: str) -> float | None:
    """Parses a number; returns None for text that is not a number, such as a path.

    NaN and infinity are returned, so that the caller's range check reports them. Other text that only `float` accepts
    as a number, such as `1_000`, raises `ConfigError`, since the meaning of the text is unclear.
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
    message = f"{where} is neither a plain number nor a path"
    raise ConfigError(message, hint=_spelling_hint(stripped) or f"write the path as `./{stripped}`")


def finite_or_none(value: object) -> float | None:
    """Converts a finite number (of any numeric type, but not a bool) to float; returns None for all other values."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def wrong_value(name: str, needed: str, value: object, *, hint: str | None = None) -> ConfigError:
    """Returns a `ConfigError` about an invalid value; `name` is the name of a setting, or describes the value.

    Example:
        >>> wrong_value("num_workers", "0 or more", -1).message
        '`num_workers`: must be 0 or more, got -1'
    """
    return ConfigError(f"{f'`{name}`' if name.isidentifier() else name}: must be {needed}, got {value!r}", hint=hint)


def checked_integer(
    name: str, value: object, *, at_least: int | None = None, below: int | None = None, hint: str | None = None
) -> int:
    """Validates that a value, of any integer type, is in [`at_least`, `below`); returns the value as an int.

    Bools, floats and strings are errors. `hint` is the hint of the error for a value out of range.
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
    """Validates that a value has exactly the type int and is in [0, 2**63)."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise wrong_value(name, "an integer of 0 or more", value)


def checked_number(name: str, value: object, *, at_least: float | None = None, above: float | None = None) -> float:
    """Validates that a value is a finite number (no bool) >= `at_least` and > `above`; returns the value as a float."""
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
    return "use only the digits 0 to 9, and a dot before decimals" if likely else None
