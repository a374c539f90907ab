"""A TOML file: `tomllib` reads it, a `Table` checks its values, and every error names file and key.

Counts such as "900B", weights, and shares such as "0.1%" are exact.
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
"""Keys from the top of a file to a value, and numbers, from 0, in arrays: ("stages", 0, "weights", "web")."""

T = TypeVar("T")


def read_text(path: str | os.PathLike[str], *, missing: str = "`tokenloom run init` writes one") -> str:
    """Returns the text of a local file; `missing` is the hint if there is no such file."""
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
    """Returns the table of a whole file; fractions are `Decimal`, exactly as written."""
    try:
        values = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:  # also numbers and arrays beyond all bounds
        hint = "save it as UTF-8 without a byte order mark" if text.startswith("\ufeff") else None
        raise ConfigError(f"{path}: not TOML: {redacted(str(error))}", hint=hint) from error
    return Table(path=path, where=(), values=values)


Convert = Callable[[Any], T]
"""Returns the meaning of a value, or raises a `ConfigError` about it, without its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a file, with its keys and `values`, which are checked as they are read; `where` it is in the file."""

    path: str
    where: KeyPath
    values: Mapping[str, Any]

    def refuse(
        self, key: str | None, message: str, *, hint: str | None = None, cause: ConfigError | None = None
    ) -> NoReturn:
        """Raises an error about a key, or about the table."""
        where = redacted(dotted(self.where if key is None else (*self.where, key)))
        raise ConfigError(": ".join(part for part in (self.path, where, message) if part), hint=hint) from cause

    def read(self, key: str, convert: Convert[T]) -> T:
        """Returns the meaning of the value of a key that is there."""
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
    ) -> dict[str, Any]:
        """Returns the meaning of all values, by key; unknown keys are refused: typos, or keys in a wrong place.

        Args:
            keys: all keys with their converters; None for those that the caller reads itself.
            required: keys that have to be there, each with an example.
            elsewhere: hints for keys that belong elsewhere.
        """
        for key in self.values:
            if key not in keys:
                hint = elsewhere.get(key) or did_you_mean(key, keys) or f"the keys are {', '.join(keys)}"
                self.refuse(key, "unknown key", hint=hint)
        for key, example in required.items():
            if key not in self.values:
                self.refuse(key, MISSING, hint=f"such as {example}")
        return {key: self.read(key, convert) for key, convert in keys.items() if convert and key in self.values}

    def table(self, key: str, *, hint: str | None = None) -> Table:
        """Returns a value that must be a table; an empty one if there is none."""
        value = self.values.get(key, {})
        if type(value) is not dict:
            self.refuse(key, f"must be a table, got {shown(value)}", hint=hint)
        return Table(path=self.path, where=(*self.where, key), values=value)

    def tables(self, key: str, *, hint: str | None = None) -> list[Table]:
        """Returns a value that must be an array of tables; none if there is none."""
        values = self.values.get(key, [])
        if type(values) is not list or any(type(value) is not dict for value in values):
            self.refuse(key, f"must be a list of tables, got {shown(values)}", hint=hint)
        return [Table(path=self.path, where=(*self.where, key, i), values=each) for i, each in enumerate(values)]


MISSING = "required, but missing"


def refuse(expected: str, value: object, *, hint: str | None = None) -> NoReturn:
    """Raises the error of a wrong value."""
    raise ConfigError(f"must be {expected}, got {shown(value)}", hint=hint)


def text(value: Any) -> str:
    """Reads a text that is not empty."""
    if type(value) is not str or not value.strip():
        refuse("a text", value)
    return value


def integer(at_least: int, below: int) -> Convert[int]:
    """Returns the converter of an integer in [at_least, below)."""

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
    """Returns the converter of one of some texts."""

    def convert(value: Any) -> str:
        if type(value) is not str or value not in options:
            refuse(f"one of {listed(options)}", value, hint=did_you_mean(value, options))
        return value

    return convert


def did_you_mean(value: object, options: Iterable[str]) -> str | None:
    """Returns the hint of a typo; None where nothing is near."""
    near = difflib.get_close_matches(value, list(options), n=1) if isinstance(value, str) else ()
    return f"did you mean `{near[0]}`?" if near else None


def listed(options: Iterable[str]) -> str:
    """Returns texts as a message lists them."""
    return ", ".join(f'"{each}"' for each in options)


def as_key(name: str) -> str:
    """Returns a name as a key of TOML."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else as_text(name)


def as_text(value: str) -> str:
    """Returns a text as a value of TOML, in one line."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def dotted(path: KeyPath) -> str:
    """Returns a path as messages write it; arrays count from 1."""
    parts = [str(part + 1) if isinstance(part, int) else as_key(part) for part in path]
    return ".".join(part if part.isprintable() else ascii(part) for part in parts)


def shown(value: object) -> str:
    """Returns a value as a message shows it: cut off where it is long, and without secrets."""
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
_MOST_DIGITS = 30
"""Digits before and behind the dot of a weight."""


def count_of(value: object) -> int:
    """Reads a whole number of tokens or samples, from 1 on, in 63 bits."""
    number, hint = _exact(value), f'such as 1000000 or "900B"; {_SUFFIXES}'
    if isinstance(value, str):
        found = _COUNT.fullmatch(value)
        number = None if found is None else Fraction(found[1].replace("_", "")) * 10 ** _POWERS[found[2]]
    if number is None or number != int(number) or not 1 <= number < 1 << 63:
        refuse("a whole number in [1, 2**63)", value, hint=hint)
    return int(number)


def weight_of(value: object) -> Fraction:
    """Reads a number from 0 on, exactly as written."""
    number = _exact(value)
    if number is None or number < 0:
        hint = "write it without quotes" if isinstance(value, str) else None
        if isinstance(value, Decimal) and value.is_finite() and value >= 0:
            hint = f"at most {_MOST_DIGITS} digits before the dot, and behind it"
        refuse("a finite number from 0 on", value, hint=hint)
    return number


def share_of(value: object) -> Fraction:
    """Reads a share above 0 and up to a half: a percentage in a text, or a number."""
    number, hint = _exact(value), 'write a percentage such as "0.1%", or a number such as 0.001'
    if isinstance(value, str) and (found := _PERCENTAGE.fullmatch(value)):
        number = Fraction(found[1]) / 100
    if number is None or not 0 < number <= Fraction(1, 2):
        if number is not None and Fraction(1, 2) < number <= 50:
            hint = f'for {shown(value)} percent write "{shown(value)}%"'
        refuse("more than 0% and at most 50%", value, hint=hint)
    return number


def _exact(value: object) -> Fraction | None:
    """Returns a number without rounding; None for other values, and for too many digits."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent  # a letter where it is not finite
        fits = isinstance(exponent, int) and exponent >= -_MOST_DIGITS and value.adjusted() < _MOST_DIGITS
        return Fraction(value) if fits else None
    return Fraction(value) if type(value) is int and abs(value) < 10**_MOST_DIGITS else None
