"""Numbers of a run as people write them: counts such as "900B", weights, and shares such as "0.1%"; all exact.

Each function takes a value of `tomllib`, with fractions as `Decimal`, and words for its errors.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import shown

MOST_SAMPLES = 1 << 60
"""Positions of a run; so many that no sum of theirs leaves 64 bits."""

_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_COUNT = re.compile(r"([0-9](?:_?[0-9]){0,40}(?:\.[0-9]{1,20})?) ?([KMBGT]?)")
_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,20})?) ?%")
_SUFFIXES = "K is 10^3, M 10^6, B or G 10^9, T 10^12"
_MOST_DIGITS = 30
"""Digits before and behind the dot of a weight."""


def count_of(value: object, what: str) -> int:
    """Returns a whole number of tokens or samples, from 1 on, in 63 bits.

    Example:
        >>> count_of("1.5T", "`tokens`"), count_of(Decimal("2e6"), "`tokens`"), count_of("10_000", "`tokens`")
        (1500000000000, 2000000, 10000)

    Raises:
        ConfigError: it is none.
    """
    number: Fraction | int | None = None
    hint: str | None = f'such as 1000000 or "900B"; {_SUFFIXES}'
    if type(value) is int:
        number = value
    elif isinstance(value, Decimal):
        number = _exact(value)
    elif isinstance(value, str):
        found = _COUNT.fullmatch(value)
        number = None if found is None else Fraction(found[1].replace("_", "")) * 10 ** _POWERS[found[2]]
        if found is None and _COUNT.fullmatch(value.upper()):
            hint = f'write "{value.upper()}"; {_SUFFIXES}'
    if number is None or number != int(number) or not 1 <= number < 1 << 63:
        message = f"expected {what} to be a whole number in [1, 2**63), found {shown(value)}"
        raise ConfigError(message, hint=hint)
    return int(number)


def weight_of(value: object, what: str) -> Fraction:
    """Returns a number from 0 on, as exactly as it is written.

    Example:
        >>> weight_of(Decimal("0.1"), "`web`")
        Fraction(1, 10)

    Raises:
        ConfigError: it is no number, negative, NaN, infinite, or has more than 30 digits before or behind the dot.
    """
    number = None
    if type(value) is int and abs(value) < 10**_MOST_DIGITS:
        number = Fraction(value)
    elif isinstance(value, Decimal):
        number = _exact(value)
    if number is None or number < 0:
        hint = "write it without quotes" if isinstance(value, str) else None
        if isinstance(value, Decimal) and value.is_finite() and value >= 0:
            hint = f"at most {_MOST_DIGITS} digits before the dot, and behind it"
        message = f"expected {what} to be a finite number from 0 on, found {shown(value)}"
        raise ConfigError(message, hint=hint)
    return number


def share_of(value: object, what: str) -> Fraction:
    """Returns a share above 0 and up to a half: a percentage in a text, or a number.

    Example:
        >>> share_of("0.1%", "`holdout`"), share_of(Decimal("0.25"), "`holdout`")
        (Fraction(1, 1000), Fraction(1, 4))

    Raises:
        ConfigError: it is none.
    """
    number, hint = None, 'write a percentage such as "0.1%", or a number such as 0.001'
    if isinstance(value, str) and (found := _PERCENTAGE.fullmatch(value)):
        number = Fraction(found[1]) / 100
    elif isinstance(value, Decimal):
        number = _exact(value)
    elif type(value) is int:
        number = Fraction(value) if 0 <= value <= 100 else None
    if number is None or not 0 < number <= Fraction(1, 2):
        if number is not None and Fraction(1, 2) < number <= 50:
            hint = f'for {shown(value)} percent write "{shown(value)}%"' if not isinstance(value, str) else hint
        elif number == 0:
            hint = "leave it out"
        message = f"expected {what} to be more than 0% and at most 50%, found {shown(value)}"
        raise ConfigError(message, hint=hint)
    return number


def _exact(value: Decimal) -> Fraction | None:
    """Returns a number without rounding; None for what is none, or has too many digits."""
    if not value.is_finite():
        return None
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # of finite numbers
    too_long = exponent < -_MOST_DIGITS or (value != 0 and value.adjusted() >= _MOST_DIGITS)
    return None if too_long or exponent > _MOST_DIGITS else Fraction(value)
