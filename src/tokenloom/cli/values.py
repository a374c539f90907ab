"""Values of options: `tokenloom.numbers` says what is wrong and where, argparse in which option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial, wraps
from typing import TypeVar

from tokenloom.errors import ConfigError
from tokenloom.numbers import items_of, parse_bytes, parse_integer, parse_number, quoted

Value = TypeVar("Value")


def _option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Returns a parser of options whose errors argparse shows as they are."""

    @wraps(parse)
    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ConfigError as error:
            message = error.message if error.hint is None else f"{error.message}; {error.hint}"
            raise argparse.ArgumentTypeError(message.replace("%", "%%")) from None

    return parsed


def _integer(text: str, *, at_least: int | None) -> int:
    try:
        return parse_integer(text.strip(), quoted(text), at_least=at_least)
    except ConfigError as error:
        expected = "expected a whole number" if at_least is None else f"expected a number from {at_least} on"
        message = f"{expected}, found {quoted(text)}"
        raise ConfigError(message, hint=error.hint) from None


count = _option(partial(_integer, at_least=1))
"""A number from 1 on."""

whole_number = _option(partial(_integer, at_least=0))
"""A number from 0 on."""

signed_number = _option(partial(_integer, at_least=None))
"""A whole number of either sign."""


@_option
def number(text: str) -> float:
    """Returns a finite number."""
    return parse_number(text.strip(), quoted(text))


@_option
def byte_count(text: str) -> int:
    """Returns the bytes that a text such as 500MB or 10GiB stands for."""
    return parse_bytes(text.strip())


@_option
def size(text: str) -> int | None:
    """Returns a number of samples from 0 on; None for `none`."""
    return _size(text.strip(), quoted(text))


@_option
def sizes(text: str) -> list[int | None]:
    """Returns numbers of samples, such as `100000,1000,none`."""
    return [_size(item.text, f"{quoted(text)}: {item.place}") for item in items_of(text)]


def _size(text: str, where: str) -> int | None:
    return None if text.lower() == "none" else parse_integer(text, where, at_least=0)


@_option
def shares(text: str) -> dict[str, float]:
    """Returns shares by name, such as `train=0.99,valid=0.01`."""
    named: dict[str, float] = {}
    for item in items_of(text):
        where = f"expected names and shares such as train=0.99,valid=0.01, found {quoted(text)}: {item.place}"
        name, equals, share = item.text.partition("=")
        if not equals or not name or name in named:
            message = f"{where} {'names a split again' if name in named else 'is no name and share'}"
            raise ConfigError(message)
        named[name] = parse_number(share, where)
        if not 0 < named[name] <= 1:
            message = f"{where} is not above 0 and at most 1"
            raise ConfigError(message)
    return named
