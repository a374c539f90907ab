"""What a request asks for: names and values of an address, read strictly."""

from __future__ import annotations

from typing import Self
from urllib.parse import parse_qsl

from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_integer, quoted

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
