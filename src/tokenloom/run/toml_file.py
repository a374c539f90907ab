"""A TOML file: `tomllib` reads it, a `Table` checks its values, and every error names the key.

Numbers as people write them, counts such as "900B", weights, and shares such as "0.1%", are exact.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.storage.secrets import redacted

KeyPath = tuple[str | int, ...]
"""Keys from the top of a file to a value, and numbers, from 0, in arrays: ("stages", 0, "weights", "web")."""

_MOST_OF_A_VALUE = 60

T = TypeVar("T")


def read_toml(path: str | os.PathLike[str]) -> str:
    """Returns the text of a local TOML file, whose content is not checked."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8", newline="") as stream:
            return stream.read()
    except UnicodeDecodeError as error:
        message = f"`{name}`: expected UTF-8, found byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ConfigError(message, hint="save it as UTF-8") from error
    except (OSError, ValueError) as error:
        message = f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = "`tokenloom run init` writes one" if isinstance(error, FileNotFoundError) else None
        raise ConfigError(message, hint=hint) from error


def parse_toml(text: str, *, path: str) -> Table:
    """Returns the table that a file is; fractions are `Decimal`, exactly as they are written."""
    try:
        text.encode()  # halves of characters cannot be written again
        values = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:  # also numbers and arrays beyond all bounds
        message = f"{path}: expected TOML, found something else: {redacted(str(error))}"
        hint = "save it as UTF-8 without a byte order mark" if text.startswith("\ufeff") else None
        raise ConfigError(message, hint=hint) from error
    return Table(path=path, where=(), values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a file, whose values are checked as they are taken out.

    Attributes:
        path: the file.
        where: the table in it.
        values: its keys and values.
        name: what it is, for messages: " of source 'web'"; nothing for the file.
    """

    path: str
    where: KeyPath
    values: Mapping[str, Any]
    name: str = ""

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str | None, message: str, *, hint: str | None = None) -> ConfigError:
        """Returns an error about a key, or about the table."""
        where = redacted(dotted(self.where if key is None else (*self.where, key)))
        return ConfigError(": ".join(part for part in (self.path, where, message) if part), hint=hint)

    @contextmanager
    def at(self, key: str | None) -> Iterator[None]:
        """Adds the path of a key, or of the table, to errors about a value."""
        try:
            yield
        except ConfigError as error:
            raise self.error(key, error.message, hint=error.hint) from error

    def refuse(self, key: str | None, message: str, *, hint: str | None = None) -> NoReturn:
        """Raises an error about a key, or about the table."""
        raise self.error(key, message, hint=hint)

    def refuse_value(self, key: str, expected: str, *, hint: str | None = None) -> NoReturn:
        """Raises the error of a value that is not what it should be, or is missing."""
        if key not in self.values:
            message = f"expected `{key}`{self.name}, found none"
        else:
            message = f"expected `{key}`{self.name} to be {expected}, found {shown(self.values[key])}"
        raise self.error(key, message, hint=hint)

    def read(self, key: str, convert: Callable[[Any, str], T]) -> T:
        """Returns a value, made by a function of the value and of words for its errors."""
        with self.at(key):
            return convert(self.values[key], f"`{key}`{self.name}")

    def text(self, key: str, *, hint: str | None = None) -> str:
        """Returns a value that has to be a text, and not an empty one."""
        value = self.values.get(key)
        if type(value) is not str or not value.strip():
            self.refuse_value(key, "a text", hint=hint)
        return value

    def integer(self, key: str, *, at_least: int, below: int, hint: str | None = None) -> int:
        """Returns a value that has to be an integer in [at_least, below)."""
        value = self.values.get(key)
        if type(value) is not int:
            if type(value) is str and re.fullmatch("[0-9_]+", value):
                hint = "write it without quotes"
            self.refuse_value(key, "an integer", hint=hint)
        if not at_least <= value < below:
            limit = f"2**{below.bit_length() - 1}" if below & (below - 1) == 0 else str(below)
            self.refuse_value(key, f"in [{at_least}, {limit})", hint=hint)
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        """Returns a value that has to be one of some texts; the default where there is none."""
        value = self.values.get(key, default)
        if type(value) is not str or value not in options:
            self.refuse_value(key, f"one of {listed(options)}", hint=did_you_mean(value, options))
        return value

    def table(self, key: str, *, name: str = "", hint: str | None = None) -> Table:
        """Returns a value that has to be a table; an empty one where there is none."""
        value = self.values.get(key, {})
        if type(value) is not dict:
            self.refuse_value(key, "a table", hint=hint)
        return Table(path=self.path, where=(*self.where, key), values=value, name=name)

    def tables(self, key: str, *, hint: str) -> list[Table]:
        """Returns a value that has to be an array of tables; none where there is none."""
        values = self.values.get(key, [])
        if type(values) is not list or any(type(value) is not dict for value in values):
            self.refuse_value(key, "a list of tables", hint=hint)
        return [Table(path=self.path, where=(*self.where, key, i), values=each) for i, each in enumerate(values)]

    def refuse_others(self, known: Iterable[str], *, elsewhere: Mapping[str, str] | None = None) -> None:
        """Refuses keys that nobody reads: they are typos, or stand in a wrong place."""
        known = tuple(known)
        for key in self.values:
            if key not in known:
                hint = (elsewhere or {}).get(key) or did_you_mean(key, known) or f"its keys are {', '.join(known)}"
                place = self.name.removeprefix(" of ") or "the file"
                self.refuse(key, f"expected {place} without `{key}`, which is no key of it", hint=hint)


def did_you_mean(value: object, options: Iterable[str]) -> str | None:
    """Returns the hint of a typo; None where nothing is near."""
    near = difflib.get_close_matches(value, list(options), n=1) if isinstance(value, str) else []
    return f"did you mean `{near[0]}`?" if near else None


def listed(options: Iterable[str]) -> str:
    """Returns texts as a message lists them."""
    return ", ".join(f'"{each}"' for each in options)


def as_key(name: str) -> str:
    """Returns a name as a key of TOML.

    Example:
        >>> as_key("web-2"), as_key("a b")
        ('web-2', '"a b"')
    """
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else as_text(name)


def as_text(value: str) -> str:
    """Returns a text as a value of TOML, in one line."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def dotted(path: KeyPath) -> str:
    """Returns a path as messages write it; arrays count from 1.

    Example:
        >>> dotted(("stages", 0, "weights", "a b"))
        'stages.1.weights."a b"'
    """
    parts = [str(part + 1) if isinstance(part, int) else as_key(part) for part in path]
    return ".".join(part if part.isprintable() else ascii(part) for part in parts)


def shown(value: object) -> str:
    """Returns a value as a message shows it: cut off where it is long, and without secrets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return f"a {'table' if isinstance(value, dict) else 'list'}"
    text = redacted(repr(value) if isinstance(value, str) else str(value))
    return text if len(text) <= _MOST_OF_A_VALUE else f"{text[:_MOST_OF_A_VALUE]}…"


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
    """
    number, hint = _exact(value), f'such as 1000000 or "900B"; {_SUFFIXES}'
    if isinstance(value, str):
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
    """
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
    """
    number, hint = _exact(value), 'write a percentage such as "0.1%", or a number such as 0.001'
    if isinstance(value, str) and (found := _PERCENTAGE.fullmatch(value)):
        number = Fraction(found[1]) / 100
    if number is None or not 0 < number <= Fraction(1, 2):
        if number is not None and Fraction(1, 2) < number <= 50:
            hint = f'for {shown(value)} percent write "{shown(value)}%"' if not isinstance(value, str) else hint
        elif number == 0:
            hint = "leave it out"
        message = f"expected {what} to be more than 0% and at most 50%, found {shown(value)}"
        raise ConfigError(message, hint=hint)
    return number


def _exact(value: object) -> Fraction | None:
    """Returns a number without rounding; None for what is none, or has too many digits."""
    if type(value) is int and abs(value) < 10**_MOST_DIGITS:
        return Fraction(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # of finite numbers
    too_long = exponent < -_MOST_DIGITS or (value != 0 and value.adjusted() >= _MOST_DIGITS)
    return None if too_long or exponent > _MOST_DIGITS else Fraction(value)
