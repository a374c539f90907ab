"""Parses query strings of the explorer strictly, and encodes answers as JSON."""

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
    """The parameters of a request by name. Repeated and unknown parameters are errors."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._read: set[str] = set()

    @classmethod
    def parse(cls, query: bytes) -> Self:
        try:
            pairs = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(query),
                errors="strict",
                max_num_fields=_MOST_VALUES,
            )
        except ValueError as error:
            raise ConfigError(f"the query must be percent-encoded `name=value&…` in UTF-8: {error}") from error
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ConfigError("the query has a repeated parameter")
        return cls(values)

    def text(self, name: str, default: str | None = None) -> str:
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise ConfigError(f"the query needs `{name}`")
        return value

    def optional_text(self, name: str) -> str | None:
        """Returns the value of a parameter; None if it is missing or empty."""
        return self.text(name, "") or None

    def number(self, name: str, default: int | None = None, *, below: int | None = None) -> int:
        """Returns the value of a parameter as a non-negative integer; `default` if it is missing."""
        text = self.text(name, None if default is None else str(default))
        number = parse_integer(text, f"`{name}`, {quoted(text)},", at_least=0)
        if below is not None and number >= below:
            raise ConfigError(f"`{name}`: must be below {below}, got {number}")
        return number

    def page(self, *, default: int, most: int) -> tuple[int, int]:
        """Returns the parameters `first` (0 if missing) and `count` (`default` if missing, at most `most`)."""
        return self.number("first", 0), min(self.number("count", default), most)

    def check_read(self) -> None:
        """Raises ConfigError if the request has parameters that the view did not read."""
        if unknown := sorted(self._values.keys() - self._read):
            raise ConfigError(f"unknown parameters {', '.join(map(quoted, unknown))}")


_LARGEST_EXACT = 2**53  # JavaScript's integers are exact up to this number

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
    """The requested index or name does not exist; the explorer shows the message where the result would be."""


def encoded(value: Any) -> bytes:
    """Encodes a value as JSON: non-finite numbers as null, integers beyond 2^53 as strings, strings made printable.

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
        # Values of keys ending in "html" are already escaped.
        return {str(key): each if str(key).endswith("html") else _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value]


def error_answer(error: TokenloomError) -> tuple[int, dict[str, str | None]]:
    status = 404 if isinstance(error, NotThereError) else 500
    for kind, number in _STATUSES:
        if isinstance(error, kind):
            status = number
            break
    return status, {"error": redacted(error.message), "hint": None if error.hint is None else redacted(error.hint)}
