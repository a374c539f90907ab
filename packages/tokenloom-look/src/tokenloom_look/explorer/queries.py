"""What a request asks for: names and values of an address, read strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qsl

import numpy as np

from tokenloom.errors import (
    ChangedFileError,
    ConfigError,
    DatasetNotFoundError,
    InputError,
    MissingObjectError,
    ReplacedObjectError,
    TokenloomError,
    UnavailableError,
)
from tokenloom.numbers import parse_integer, quoted
from tokenloom.rendering.words import printable
from tokenloom.storage.secrets import redacted

_MOST_VALUES = 16


class Query:
    """The values of a request, by name: each at most once, and each of them read.

    Args:
        values: texts by name.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._read: set[str] = set()

    @classmethod
    def parse(cls, query: bytes) -> Self:
        """Returns what stands behind `?` in an address.

        Raises:
            ConfigError: it is no query, or has a name twice.
        """
        try:
            pairs = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(query),
                errors="strict",
                max_num_fields=_MOST_VALUES,
            )
        except ValueError as error:
            message = f"expected `name=value&…` in UTF-8, percent-encoded: {error}"
            raise ConfigError(message) from error
        values = dict(pairs)
        if len(values) != len(pairs):
            message = "expected each name once"
            raise ConfigError(message)
        return cls(values)

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a value.

        Raises:
            ConfigError: it is not given, and there is no default.
        """
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None:
            message = f"expected `{name}` in the query, found none"
            raise ConfigError(message)
        return value

    def optional_text(self, name: str) -> str | None:
        """Returns a value; None where none, or an empty one, is given."""
        return self.text(name, "") or None

    def number(self, name: str, default: int | None = None, *, below: int | None = None) -> int:
        """Returns a whole number from 0 on.

        Args:
            name: the name.
            default: what it is if it is not given; None if it has to be.
            below: more than the largest that is taken; None for any.

        Raises:
            ConfigError: it is none.
        """
        text = self.text(name, None if default is None else str(default))
        number = parse_integer(text, f"`{name}`, {quoted(text)},", at_least=0)
        if below is not None and number >= below:
            message = f"expected `{name}` in [0, {below}), found {number}"
            raise ConfigError(message)
        return number

    def page(self, *, default: int, most: int) -> tuple[int, int]:
        """Returns `first` and `count`: the first row, from 0, and how many; of too many the most that are given.

        Raises:
            ConfigError: they are none.
        """
        return self.number("first", 0), min(self.number("count", default), most)

    def check_read(self) -> None:
        """Checks that nobody asked for more than what was read.

        Raises:
            ConfigError: a name means nothing here.
        """
        if unknown := sorted(self._values.keys() - self._read):
            message = f"expected none of {', '.join(map(quoted, unknown))} here"
            raise ConfigError(message)


_LARGEST_EXACT = 2**53
"""JavaScript's numbers are exact up to it."""

_STATUSES: tuple[tuple[type[TokenloomError], int], ...] = (
    (ConfigError, 400),
    (InputError, 400),
    (DatasetNotFoundError, 404),
    (MissingObjectError, 404),
    (ChangedFileError, 409),
    (ReplacedObjectError, 409),
    (UnavailableError, 503),
)


class NotThereError(TokenloomError):
    """What was asked for by number or name is not there; the page says so in its place."""


def encoded(value: Any) -> bytes:
    """Returns a value as JSON: what is not finite as null, whole numbers that JavaScript would round as texts.

    Texts of strangers, such as names of files, are made printable on their way, so that they turn no page around.

    Example:
        >>> encoded({"position": 2**60, "loss": float("nan")})
        b'{"position":"1152921504606846976","loss":null}'
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="backslashreplace"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_LARGEST_EXACT <= value <= _LARGEST_EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        # What is HTML was made printable, and escaped, by who drew it.
        return {str(key): each if str(key).endswith("html") else _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value]


def error_answer(error: TokenloomError) -> tuple[int, dict[str, str | None]]:
    """Returns status and answer of an error, without secrets."""
    status = 404 if isinstance(error, NotThereError) else 500
    for kind, number in _STATUSES:
        if isinstance(error, kind):
            status = number
            break
    return status, {"error": redacted(error.message), "hint": None if error.hint is None else redacted(error.hint)}
