"""Numbers that users write or pass: read strictly, or refused with the place of the fault; never guessed.

A number is written in ASCII digits with at most one dot, a sign and an exponent where they make sense. What else Python
takes for one (`nan`, `inf`, `1_000`, digits of other scripts) is refused, since nobody means it.

All raise a `ConfigError`: its message goes on from `where`, which says what is read, or is about the setting `name`.
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
_MOST_SHOWN = 60
"""Characters of a text that a message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A part of a list in a text.

    Attributes:
        text: the text, without the blanks around it; may be empty.
        number: which of the list, from 1.
        column: where it begins, in characters from 1.
    """

    text: str
    number: int
    column: int

    @property
    def place(self) -> str:
        """A phrase that names it and says where it is."""
        return f"item {self.number} {quoted(self.text)} at column {self.column}"


def quoted(text: str) -> str:
    """Returns a text as a message shows it, cut off where it is very long."""
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def items_of(text: str, *, separators: str = ",", blanks_separate: bool = False) -> list[Item]:
    """Returns the items of a list, the empty ones too; a text of blanks is a list of one empty item.

    Example:
        >>> [(item.text, item.column) for item in items_of("90, abc,,5")]
        [('90', 1), ('abc', 5), ('', 9), ('5', 10)]

    Args:
        text: items with separators between them, and blanks around them.
        separators: characters, each of which ends an item.
        blanks_separate: whether blanks between two items will do instead.
    """
    between = f"[{_BLANKS}]*[{re.escape(separators)}][{_BLANKS}]*"
    if blanks_separate:
        between += f"|[{_BLANKS}]+"
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
    """Returns the number that a text is, as double precision rounds it.

    Example:
        >>> parse_number("0.25", "share")
        0.25
    """
    if not _NUMBER.fullmatch(text):
        message = f"{where} is {'empty' if not text else 'no number'}"
        raise ConfigError(message, hint=_spelling_hint(text))
    number = float(text)
    if math.isinf(number):
        message = f"{where} is too large for double precision"
        raise ConfigError(message)
    return number


def parse_integer(text: str, where: str, *, at_least: int | None = None) -> int:
    """Returns the whole number of 64 bits that a text is, from `at_least` on if that is given."""
    if not _INTEGER.fullmatch(text):
        message = f"{where} is {'empty' if not text else 'no whole number'}"
        raise ConfigError(message, hint=_spelling_hint(text))
    if len(text) > 40 or abs(number := int(text)) >= 2**64:
        message = f"{where} does not fit 64 bits"
        raise ConfigError(message)
    if at_least is not None and number < at_least:
        message = f"{where} is less than {at_least}"
        raise ConfigError(message)
    return number


def parse_bytes(text: str) -> int:
    """Returns the bytes that a text stands for: whole, from 1 on; a fraction of one is cut off.

    Units are KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of 1024).

    Example:
        >>> parse_bytes("1.5 GiB")
        1610612736
    """
    found = _BYTES.fullmatch(text)
    count = 0 if found is None else int(Decimal(found[1]) * _UNITS[found[2]])
    if not 1 <= count <= _LARGEST:
        message = f"expected a number of bytes such as 500MB or 10GiB, found {quoted(text)}"
        raise ConfigError(message, hint=None if found is None else f"from 1 to {_LARGEST} bytes")
    return count


def bytes_text(num_bytes: int) -> str:
    """Returns a number of bytes as `parse_bytes` reads it, in the largest unit that divides it.

    Example:
        >>> bytes_text(1 << 30), bytes_text(64_000)
        ('1GiB', '64KB')
    """
    size, unit = max((size, unit or "") for unit, size in _UNITS.items() if num_bytes % size == 0)
    return f"{num_bytes // size}{unit}"


def parse_percentage(text: str, where: str) -> float:
    """Returns the share that a percentage such as `0.1%` is, from 0 to 1."""
    if not text.endswith("%"):
        message = f"{where} is no percentage such as 0.1%"
        raise ConfigError(message)
    percent = parse_number(text[:-1], where)
    if not 0 <= percent <= 100:
        message = f"{where} is not from 0% to 100%"
        raise ConfigError(message)
    return percent / 100


def number_or_none(text: str, where: str) -> float | None:
    """Returns the number that a text is, None for one that nobody would take for a number, such as a path.

    NaN and infinity are numbers here, for the check of the range to refuse. What Python takes for a number and
    `parse_number` does not is refused, since it may be meant as either.
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
    """Returns the float of a finite number of any type; None for all else, which includes True, False and texts."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def checked_integer(
    name: str, value: object, *, at_least: int | None = None, below: int | None = None, hint: str | None = None
) -> int:
    """Returns the value as an int in [at_least, below), of whatever integer type it was.

    Texts, floats, True and False are no integers. `hint` says what to do where it is out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # which it finds out
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        message = f"expected an integer as {name}, found {value!r}"
        raise ConfigError(message)
    if below is not None and not (at_least or 0) <= number < below:
        message = f"expected {name} in [{at_least or 0}, {_power(below)}), found {number}"
        raise ConfigError(message, hint=hint)
    if at_least is not None and number < at_least:
        message = f"expected {name} of at least {at_least}, found {number}"
        raise ConfigError(message, hint=hint)
    return number


def check_count(name: str, value: object) -> None:
    """Checks that a number of things is one that can be recorded: an int, of no other type, from 0 on, in 63 bits."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        message = f"expected {name} to be an integer from 0 on, found {value!r}"
        raise ConfigError(message)


def checked_number(name: str, value: object, *, at_least: float | None = None, above: float | None = None) -> float:
    """Returns the value as a finite float of at least `at_least` and above `above`, of whatever type of number it was.

    Texts, True and False are no numbers.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        message = f"expected a number as {name}, found {value!r}"
        raise ConfigError(message)
    number = finite_or_none(value)
    if number is None or (above is not None and number <= above) or (at_least is not None and number < at_least):
        bounds = [f" above {above:g}"] if above is not None else []
        bounds += [f" of at least {at_least:g}"] if at_least is not None else []
        message = f"expected {'' if bounds else 'a finite '}{name}{' and'.join(bounds)}, found {value!r}"
        raise ConfigError(message)
    return number


def _power(number: int) -> str:
    exponent = number.bit_length() - 1
    return f"2**{exponent}" if exponent >= 16 and number == 1 << exponent else str(number)


def _spelling_hint(text: str) -> str | None:
    likely = "_" in text or "," in text or not text.isascii()
    return "write it in the digits 0 to 9, with a dot before decimals" if likely else None
