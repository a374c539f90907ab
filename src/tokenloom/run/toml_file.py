"""Reads TOML files strictly: `Table` validates keys and values, and every error names the file and the key.

Counts such as "900B", weights, and shares such as "0.1%" are parsed exactly.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.storage.secrets import redacted

KeyPath = tuple[str | int, ...]
"""Path of a value in a file: keys, and indices from 0 in arrays, such as ("stages", 0, "weights", "web")."""

T = TypeVar("T")


def read_text(path: str | os.PathLike[str], *, missing: str = "create it with `tokenloom run init`") -> str:
    """Reads a local UTF-8 file as text. If the file does not exist, `missing` is the hint of the error."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8", newline="") as stream:
            return stream.read()
    except (OSError, ValueError) as error:
        message = f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = missing if isinstance(error, FileNotFoundError) else None
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else hint
        raise ConfigError(message, hint=hint) from error


def parse_toml(text: str, *, path: str) -> Table:
    """Parses the text of a TOML file into its top-level table; decimal numbers become exact `Decimal` values."""
    try:
        values = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:  # also huge numbers and deeply nested arrays
        hint = "save it as UTF-8 without a byte order mark" if text.startswith("\ufeff") else None
        raise ConfigError(f"{path}: invalid TOML: {redacted(str(error))}", hint=hint) from error
    return Table(path=path, where=(), values=values)


Convert = Callable[[Any], T]  # converts a value, or raises a `ConfigError` that does not name the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A TOML table; `read` validates `values`. `where`: path of the table in the file, such as `stages.2.weights`."""

    path: str
    where: KeyPath
    values: Mapping[str, Any]

    def refuse(
        self, key: str | None, message: str, *, hint: str | None = None, cause: ConfigError | None = None
    ) -> NoReturn:
        where = redacted(format_path(self.where if key is None else (*self.where, key)))
        raise ConfigError(": ".join(part for part in (self.path, where, message) if part), hint=hint) from cause

    def read(self, key: str, convert: Convert[T]) -> T:
        try:
            return convert(self.values[key])
        except ConfigError as error:
            self.refuse(key, error.message, hint=error.hint, cause=error)

    def read_all(
        self,
        keys: Mapping[str, Convert[Any] | None],
        *,
        required: Mapping[str, str] = MappingProxyType({}),
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        unknown: str = "unknown key",
    ) -> dict[str, Any]:
        """Converts all values and returns them in the order of `keys`.

        Args:
            keys: converter of each allowed key; None for keys that the caller reads itself.
            required: hint of each key that must exist and must not be empty.
            elsewhere: hint of each key that belongs in another table.
            unknown: error message for keys that are not in `keys`.
        """
        for key in self.values:
            if key not in keys:
                hint = elsewhere.get(key) or did_you_mean(key, keys) or f"write one of {', '.join(list(keys)[:20])}"
                self.refuse(key, unknown, hint=hint)
        for key, example in required.items():
            if self.values.get(key) in (None, [], {}):
                self.refuse(key, MISSING, hint=example)
        return {key: self.read(key, convert) for key, convert in keys.items() if convert and key in self.values}

    def table(self, key: str, *, hint: str | None = None) -> Table:
        """Returns the table at `key`; an empty table if the key does not exist."""
        value = self.values.get(key, {})
        if type(value) is not dict:
            self.refuse(key, f"must be a table, got {format_value(value)}", hint=hint)
        return Table(path=self.path, where=(*self.where, key), values=value)

    def tables(self, key: str, *, hint: str | None = None) -> list[Table]:
        """Returns the array of tables at `key`; an empty list if the key does not exist."""
        values = self.values.get(key, [])
        if type(values) is not list or any(type(value) is not dict for value in values):
            self.refuse(key, f"must be a list of tables, got {format_value(values)}", hint=hint)
        return [Table(path=self.path, where=(*self.where, key, i), values=each) for i, each in enumerate(values)]


MISSING = "required, but missing or empty"


def refuse(expected: str, value: object, *, hint: str | None = None) -> NoReturn:
    raise ConfigError(f"must be {expected}, got {format_value(value)}", hint=hint)


def text(value: Any) -> str:
    if type(value) is not str or not value.strip():
        refuse("a non-empty string", value)
    return value


def integer(at_least: int, below: int) -> Convert[int]:
    def convert(value: Any) -> int:
        if type(value) is not int:
            is_quoted = type(value) is str and re.fullmatch("[0-9_]+", value)
            refuse("an integer", value, hint="write it without quotes" if is_quoted else None)
        if not at_least <= value < below:
            limit = f"2**{below.bit_length() - 1}" if below & (below - 1) == 0 else str(below)
            refuse(f"in [{at_least}, {limit})", value)
        return value

    return convert


def choice(*options: str) -> Convert[str]:
    def convert(value: Any) -> str:
        if type(value) is not str or value not in options:
            refuse(f"one of {format_options(options)}", value, hint=did_you_mean(value, options))
        return value

    return convert


def did_you_mean(value: object, options: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(value, list(options), n=1) if isinstance(value, str) else ()
    return f"did you mean `{near[0]}`?" if near else None


def format_options(options: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in options)


def as_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else as_text(name)


def as_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def format_path(path: KeyPath) -> str:
    parts = [str(part + 1) if isinstance(part, int) else as_key(part) for part in path]
    return ".".join(part if part.isprintable() else ascii(part) for part in parts)


def format_value(value: object) -> str:
    """Formats a value for an error message: at most 60 characters, and without secrets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return f"{'a' if value else 'an empty'} {'table' if isinstance(value, dict) else 'list'}"
    text = redacted(repr(value) if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_COUNT = re.compile(r"([0-9](?:_?[0-9]){0,40}(?:\.[0-9]{1,20})?) ?([KMBGT]?)")
_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,20})?) ?%")
_SUFFIXES = "K is 10^3, M 10^6, B or G 10^9, T 10^12"
_MOST_DIGITS = 30  # maximum number of digits before and after the decimal point of a weight


def count_of(value: object) -> int:
    number, hint = _exact(value), f'write 1000000 or "900B"; {_SUFFIXES}'
    if isinstance(value, str):
        found = _COUNT.fullmatch(value)
        number = None if found is None else Fraction(found[1].replace("_", "")) * 10 ** _POWERS[found[2]]
    if number is None or number != int(number) or not 1 <= number < 1 << 63:
        refuse("an integer in [1, 2**63)", value, hint=hint)
    return int(number)


def weight_of(value: object) -> Fraction:
    number = _exact(value)
    if number is None or number < 0:
        hint = "write it without quotes" if isinstance(value, str) else None
        if isinstance(value, Decimal) and value.is_finite() and value >= 0:
            hint = f"write at most {_MOST_DIGITS} digits before and after the decimal point"
        refuse("a finite number of at least 0", value, hint=hint)
    return number


def share_of(value: object) -> Fraction:
    """Parses a share in (0, 1/2]: a number, or a percentage in a string."""
    number, hint = _exact(value), 'write a percentage such as "0.1%", or a number such as 0.001'
    if isinstance(value, str) and (found := _PERCENTAGE.fullmatch(value)):
        number = Fraction(found[1]) / 100
    if number is None or not 0 < number <= Fraction(1, 2):
        if number is not None and Fraction(1, 2) < number <= 50:
            hint = f'write "{format_value(value)}%" for {format_value(value)} percent'
        refuse("above 0% and at most 50%", value, hint=hint)
    return number


def _exact(value: object) -> Fraction | None:
    """Returns a number as an exact fraction; None for other values, and for numbers with too many digits."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent  # a letter if the number is not finite
        fits = isinstance(exponent, int) and exponent >= -_MOST_DIGITS and value.adjusted() < _MOST_DIGITS
        return Fraction(value) if fits else None
    return Fraction(value) if type(value) is int and abs(value) < 10**_MOST_DIGITS else None
