"""A TOML file whose every error quotes the line: what is in it, and where it stands."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.run.toml_lines import MOST_DEPTH, KeyPath, Line, TomlPlaces
from tokenloom.storage.json_files import is_deeper
from tokenloom.storage.secrets import redacted
from tokenloom.storage.versions import read_at_most

MOST_BYTES = 64 << 20
"""Largest file that is read; 40,000 sources take 4 MB."""

_MOST_SHOWN = 160
"""Characters of a line that a message quotes."""

_MOST_OF_A_VALUE = 60
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # a terminal would do what they say
_PLACE = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")

T = TypeVar("T")


class TomlFile:
    """The values of a file, and its lines for errors.

    Args:
        text: what is in the file.
        path: the file, for errors.

    Attributes:
        text, path: the same.
        values: what `tomllib` makes of it; fractions are `Decimal`, exactly as they are written.

    Raises:
        ConfigError: it is no TOML; the message quotes the line.
    """

    def __init__(self, text: str, *, path: str) -> None:
        self.text = text
        self.path = path
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            message = f"expected text in `{path}`, found halves of characters"
            raise ConfigError(message)
        if text.startswith("\ufeff"):
            message = f"`{path}` begins with a byte order mark, which TOML does not have"
            raise ConfigError(message, hint="save it as UTF-8 without one")
        try:
            self.values: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as error:
            raise self._no_toml(str(error)) from None
        except RecursionError:
            raise self._too_deep() from None
        except (ValueError, ArithmeticError) as error:  # a number of thousands of digits, or such an exponent
            message = f"`{path}` has a number that is too long to read"
            raise ConfigError(message) from error
        if is_deeper(self.values, MOST_DEPTH):
            raise self._too_deep()

    @cached_property
    def places(self) -> TomlPlaces:
        """Where everything stands; takes a moment for a large file, so only errors and edits ask."""
        return TomlPlaces(self.text)

    @property
    def root(self) -> Table:
        """The table that the file is."""
        return Table(file=self, where=(), values=self.values)

    def line_of(self, where: KeyPath) -> Line | None:
        """Returns the line of a key or table, or of what it would be in; None for the file as a whole."""
        place = self.places.find(where)
        return None if place is None else self.places.line_at(place.start)

    def error(self, where: KeyPath, message: str, *, hint: str | None = None) -> ConfigError:
        """Returns an error about a key or table, that quotes its line."""
        return self._error(self.line_of(where), message, hint)

    def _error(self, line: Line | None, message: str, hint: str | None) -> ConfigError:
        if line is None:
            return ConfigError(f"{self.path}: {message}", hint=hint)
        text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", redacted(line.text).strip())
        if len(text) > _MOST_SHOWN:
            text = f"{text[:_MOST_SHOWN]}…"
        return ConfigError(f"{self.path}:{line.number}: {message}\n    {text}", hint=hint)

    def _too_deep(self) -> ConfigError:
        return ConfigError(
            f"expected at most {MOST_DEPTH} arrays and tables in each other in `{self.path}`, found more"
        )

    def _no_toml(self, message: str) -> ConfigError:
        found = _PLACE.search(message)
        what = message if found is None else message[: found.start()]
        number = int(found[1]) if found is not None and found[1] else self.places.num_lines
        line = self.places.line(min(number, self.places.num_lines))
        at = "" if found is None or not found[2] else f", at column {found[2]}"
        repeated = self.places.first_repeated()
        if re.match("Cannot|Duplicate", what) and repeated is not None:
            first, again = repeated
            name = dotted(again.path)
            before = self.places.line_at(first.start)
            message = f"expected `{name}` once, found it again; it stands on line {before.number} already"
            return self._error(self.places.line_at(again.start), message, "leave one of them out")
        return self._error(line, f"expected TOML, found something else{at}: {what}", None)


def read_toml(path: str | os.PathLike[str]) -> TomlFile:
    """Returns what a local file holds.

    Raises:
        ConfigError: it is missing, no regular file, not readable, larger than `MOST_BYTES`, not UTF-8 or no TOML.
    """
    name = os.fspath(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for somebody who writes
        with open(handle, "rb", buffering=0):
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                message = f"expected a file, found `{name}`, which is none"
                raise ConfigError(message)
            data = read_at_most(handle, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        message = f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = "`tokenloom run init` writes one" if isinstance(error, FileNotFoundError) else None
        raise ConfigError(message, hint=hint) from error
    if len(data) > MOST_BYTES:
        message = f"expected at most {MOST_BYTES} bytes in `{name}`, found more"
        raise ConfigError(message)
    try:
        return TomlFile(data.decode(), path=name)
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        message = f"{name}:{number}: expected UTF-8, found byte 0x{data[error.start]:02x}"
        raise ConfigError(message, hint="save it as UTF-8") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a file, whose values are taken out with a look at what they are.

    Attributes:
        file: the file.
        where: the table in it.
        values: its keys and values.
        name: what it is, for messages: " of source 'web'"; nothing for the file.
    """

    file: TomlFile
    where: KeyPath
    values: Mapping[str, Any]
    name: str = ""

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str | None, message: str, *, hint: str | None = None) -> ConfigError:
        """Returns an error about a key, or about the table."""
        return self.file.error(self.where if key is None else (*self.where, key), message, hint=hint)

    @contextmanager
    def at(self, key: str | None) -> Iterator[None]:
        """Adds the line of a key, or of the table, to errors about a value."""
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
        """Returns a value, made by a function of the value and of words for its errors, which get the line."""
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
        return Table(file=self.file, where=(*self.where, key), values=value, name=name)

    def tables(self, key: str, *, hint: str) -> list[Table]:
        """Returns a value that has to be an array of tables; none where there is none."""
        values = self.values.get(key, [])
        if type(values) is not list or any(type(value) is not dict for value in values):
            self.refuse_value(key, "a list of tables", hint=hint)
        return [Table(file=self.file, where=(*self.where, key, i), values=each) for i, each in enumerate(values)]

    def refuse_others(self, known: Iterable[str], *, elsewhere: Mapping[str, str] | None = None) -> None:
        """Refuses keys that nobody reads: they are typos, or stand in a wrong place.

        Args:
            known: the keys that are read.
            elsewhere: further keys, and what to do about them here.
        """
        known = tuple(known)
        for key in self.values:
            if key in known:
                continue
            hint = (elsewhere or {}).get(key) or did_you_mean(key, known)
            found = f"expected {self._as_place()} without `{key}`, which is no key of it"
            self.refuse(key, found, hint=hint or f"its keys are {', '.join(known)}")

    def _as_place(self) -> str:
        return self.name.removeprefix(" of ") or "the file"


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
    """Returns a path as TOML writes it; numbers count from 1."""
    words = [f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(words).removeprefix(".")


def shown(value: object) -> str:
    """Returns a value as a message shows it: cut off where it is long, and without secrets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return f"a {'table' if isinstance(value, dict) else 'list'}"
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:
        return "a number of thousands of digits"
    text = redacted(text)
    return text if len(text) <= _MOST_OF_A_VALUE else f"{text[:_MOST_OF_A_VALUE]}…"
