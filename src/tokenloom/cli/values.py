"""Values of options: what they raise says what is wrong and where, argparse in which option."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import NoReturn

from tokenloom.errors import ConfigError
from tokenloom.numbers import items_of, number_or_none, parse_bytes, parse_integer, parse_number, quoted
from tokenloom.run.toml_file import count_of, share_of, weight_of

_SPLITS = ("train", "valid", "test")
_BOTH_SPLITS = "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01"


def refuse(message: str, *, hint: str | None = None) -> NoReturn:
    """Raises the error of a value that is wrong, or contradicts another; the command ends with status 1."""
    raise ConfigError(message, hint=hint)


def _integer(text: str, *, at_least: int | None) -> int:
    try:
        return parse_integer(text.strip(), "", at_least=at_least)
    except ConfigError as error:
        expected = "a whole number" if at_least is None else f"a number from {at_least} on"
        refuse(f"expected {expected}, found {quoted(text)}", hint=error.hint)


count: partial[int] = partial(_integer, at_least=1)
"""A number from 1 on."""

whole_number: partial[int] = partial(_integer, at_least=0)
"""A number from 0 on."""

signed_number: partial[int] = partial(_integer, at_least=None)
"""A whole number of either sign."""


def number(text: str) -> float:
    """Returns a finite number."""
    return parse_number(text.strip(), quoted(text))


def byte_count(text: str) -> int:
    """Returns the bytes that a text such as 500MB or 10GiB stands for."""
    return parse_bytes(text.strip())


def size(text: str, where: str | None = None) -> int | None:
    """Returns a number of samples from 0 on; None for `none`."""
    stripped = text.strip()
    return None if stripped.lower() == "none" else parse_integer(stripped, where or quoted(text), at_least=0)


def sizes(text: str) -> list[int | None]:
    """Returns numbers of samples, such as `100000,1000,none`."""
    return [size(item.text, f"{quoted(text)}: {item.place}") for item in items_of(text)]


def shares(text: str) -> dict[str, float]:
    """Returns shares by name, of `train=0.99,valid=0.01`, or of weights of train, valid and test such as `98,1,1`."""
    if "=" not in text:
        return {name: share for name, share in zip(_SPLITS, _shares_of_weights(text), strict=True) if share}
    named = {}
    for name, value, where in _named(text, "a split", "share", hint=_BOTH_SPLITS):
        named[name] = parse_number(value, where)
        if not 0 < named[name] <= 1:
            refuse(f"{where} is not above 0 and at most 1", hint=_BOTH_SPLITS)
    return named


def split_weights(text: str) -> str:
    """Returns weights of train, valid and test, such as `98,1,1`; from shares by name, too."""
    if "=" not in text:
        _shares_of_weights(text)  # which says what is wrong
        return text
    named = shares(text)
    if not (set(named) <= set(_SPLITS) and math.isclose(sum(named.values()), 1)):
        message = f"expected shares of train, valid and test that add up to 1, found {quoted(text)}"
        raise ConfigError(message, hint=_BOTH_SPLITS)
    return ",".join(str(Decimal(repr(named.get(name, 0.0)))) for name in _SPLITS)


def _shares_of_weights(text: str) -> list[float]:
    from tokenloom.datasets.splits import parse_and_normalize_split

    try:
        return parse_and_normalize_split(text)
    except ConfigError as error:
        raise ConfigError(error.message, hint=_BOTH_SPLITS) from None


def _named(
    text: str, what: str, value: str, *, expected: str = "", hint: str | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yields name, value and place of each item of NAME=VALUE,…: none without both, and no name twice."""
    names = set()
    for item in items_of(text):
        where = f"{expected}{quoted(text)}: {item.place}"
        name, equals, found = item.text.rpartition("=")
        name = name.strip()
        if not equals or not name or name in names:
            refuse(f"{where} {f'names {what} again' if name in names else f'is no name and {value}'}", hint=hint)
        names.add(name)
        yield name, found, where


def token_count(text: str) -> int:
    """Returns a number of tokens or samples from 1 on, such as 900B."""
    return count_of(text.strip(), quoted(text))


def share(text: str) -> Fraction:
    """Returns a share such as 0.1%."""
    stripped = text.strip()
    number = number_or_none(stripped, quoted(text))
    return share_of(stripped if number is None else Decimal(stripped), quoted(text))


def weights(text: str) -> tuple[tuple[str, Fraction], ...]:
    """Returns weights by name, such as `web=5,code=5`."""
    named = []
    expected = "expected names and weights such as web=5,code=5, found "
    for name, weight, where in _named(text, "a source", "weight", expected=expected):
        if number_or_none(weight, where) is None:
            refuse(f"{where} has no number as weight")
        named.append((name, weight_of(Decimal(weight.strip()), f"the weight of {name!r}")))
    return tuple(named)


def named_data(text: str) -> tuple[str, str]:
    """Returns name and data of a source, such as `books=data/books/*`."""
    name, equals, data = text.partition("=")
    if not equals or not name.strip() or not data.strip():
        refuse(f"expected a name and data such as books=data/books/*, found {quoted(text)}")
    return name.strip(), data.strip()


def ranges(text: str) -> list[range]:
    """Returns numbers from 0 on and ranges of them, such as `5,100:200`: from 100 on, up to but without 200."""
    found = []
    for item in items_of(text):
        where = f"expected numbers or ranges such as 5 or 100:200, found {quoted(text)}: {item.place}"
        first, colon, stop = item.text.partition(":")
        start = parse_integer(first.strip(), where, at_least=0)
        found.append(range(start, parse_integer(stop.strip(), where, at_least=0) if colon else start + 1))
        if not found[-1]:
            message = f"{where} ends where it begins, or before"
            raise ConfigError(message, hint="write the first number, and the one behind the last")
    return found


def ids(text: str) -> list[int]:
    """Returns ids of tokens, such as `17,4,2051`."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        message = f"expected ids such as 17,4,2051, found {text!r}"
        raise ConfigError(message) from None


def date(text: str) -> datetime:
    """Returns a date, with or without a time, such as 2026-12-01T08:00."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"expected a date such as 2026-12-01 or 2026-12-01T08:00, found {quoted(text)}"
        raise ConfigError(message) from error
