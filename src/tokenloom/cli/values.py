"""Values of options: what they raise says what is wrong and where, argparse in which option."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial

from tokenloom.errors import ConfigError
from tokenloom.numbers import items_of, number_or_none, parse_bytes, parse_integer, parse_number, quoted
from tokenloom.run.toml_file import count_of, share_of, weight_of

_SPLITS = ("train", "valid", "test")
_BOTH_SPLITS = "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01"


def _integer(text: str, *, at_least: int | None) -> int:
    try:
        return parse_integer(text.strip(), quoted(text), at_least=at_least)
    except ConfigError as error:
        expected = "expected a whole number" if at_least is None else f"expected a number from {at_least} on"
        message = f"{expected}, found {quoted(text)}"
        raise ConfigError(message, hint=error.hint) from None


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


def size(text: str) -> int | None:
    """Returns a number of samples from 0 on; None for `none`."""
    return _size(text.strip(), quoted(text))


def sizes(text: str) -> list[int | None]:
    """Returns numbers of samples, such as `100000,1000,none`."""
    return [_size(item.text, f"{quoted(text)}: {item.place}") for item in items_of(text)]


def _size(text: str, where: str) -> int | None:
    return None if text.lower() == "none" else parse_integer(text, where, at_least=0)


def shares(text: str) -> dict[str, float]:
    """Returns shares by name, of `train=0.99,valid=0.01`, or of weights of train, valid and test such as `98,1,1`."""
    if "=" in text:
        return _named_shares(text)
    return {name: share for name, share in zip(_SPLITS, _shares_of_weights(text), strict=True) if share}


def split_weights(text: str) -> str:
    """Returns weights of train, valid and test, such as `98,1,1`; from shares by name, too."""
    if "=" not in text:
        _shares_of_weights(text)  # which says what is wrong
        return text
    named = _named_shares(text)
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


def _named_shares(text: str) -> dict[str, float]:
    named: dict[str, float] = {}
    for item in items_of(text):
        where = f"{quoted(text)}: {item.place}"
        name, equals, share = item.text.partition("=")
        if not equals or not name or name in named:
            message = f"{where} {'names a split again' if name in named else 'is no name and share'}"
            raise ConfigError(message, hint=_BOTH_SPLITS)
        named[name] = parse_number(share, where)
        if not 0 < named[name] <= 1:
            message = f"{where} is not above 0 and at most 1"
            raise ConfigError(message, hint=_BOTH_SPLITS)
    return named


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
    named: dict[str, Fraction] = {}
    for item in items_of(text):
        where = f"expected names and weights such as web=5,code=5, found {quoted(text)}: {item.place}"
        name, equals, weight = item.text.rpartition("=")
        name = name.strip()
        if not equals or not name or name in named:
            message = f"{where} {'names a source again' if name in named else 'is no name and weight'}"
            raise ConfigError(message)
        if number_or_none(weight, where) is None:
            message = f"{where} has no number as weight"
            raise ConfigError(message)
        named[name] = weight_of(Decimal(weight.strip()), f"the weight of {name!r}")
    return tuple(named.items())


def named_data(text: str) -> tuple[str, str]:
    """Returns name and data of a source, such as `books=data/books/*`."""
    name, equals, data = text.partition("=")
    if not equals or not name.strip() or not data.strip():
        message = f"expected a name and data such as books=data/books/*, found {quoted(text)}"
        raise ConfigError(message)
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


def names(text: str) -> list[str]:
    """Returns names with commas between them, such as `a,b`."""
    return [item.text for item in items_of(text)]


def words(text: str) -> list[str]:
    """Returns words as a shell tells them apart, such as `--lr 1`."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        message = f"expected words as a shell takes them, found {quoted(text)}: {str(error).lower()}"
        raise ConfigError(message) from error


def date(text: str) -> datetime:
    """Returns a date, with or without a time, such as 2026-12-01T08:00."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"expected a date such as 2026-12-01 or 2026-12-01T08:00, found {quoted(text)}"
        raise ConfigError(message) from error
