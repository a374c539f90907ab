"""The JSON of a manifest, which anybody may have written: its members by name and type, or what is wrong with them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.storage.json_files import UnusableJsonError, parse_json

_CRC32 = re.compile("[0-9a-f]{8}")

_MOST_SHOWN = 60
"""Characters of a wrong value that a message shows."""

T = TypeVar("T")


class JsonRecord:
    """The members of a JSON object, taken out by name and type.

    All that takes one out raises a `DatasetFormatError` where it is missing or of another type.

    Args:
        members: of the object.
        path: of the file, for errors.
        name: of the object in it, with a dot behind; nothing for the outermost.
    """

    __slots__ = ("_name", "_path", "members")

    def __init__(self, members: dict[str, Any], path: str, name: str = "") -> None:
        self.members = members
        self._path = path
        self._name = name

    def integer(self, name: str) -> int:
        """Returns an integer; a boolean is none."""
        value = self._get(name)
        if type(value) is not int:
            raise self._wrong(name, "an integer")
        return value

    def text(self, name: str) -> str:
        """Returns a string."""
        value = self._get(name)
        if type(value) is not str:
            raise self._wrong(name, "a string")
        return value

    def crc32(self, name: str) -> int:
        """Returns the number that 8 hexadecimal digits spell."""
        value = self.text(name)
        if _CRC32.fullmatch(value):
            return int(value, 16)
        raise self._wrong(name, "8 hexadecimal digits")

    def record(self, name: str) -> JsonRecord:
        """Returns an object."""
        value = self._get(name)
        if type(value) is not dict:
            raise self._wrong(name, "an object")
        return JsonRecord(value, self._path, f"{self._name}{name}.")

    def records(self, name: str) -> list[JsonRecord]:
        """Returns the objects of an array."""
        values = self._get(name)
        if type(values) is not list or not all(type(value) is dict for value in values):
            raise self._wrong(name, "an array of objects")
        return [JsonRecord(value, self._path, f"{self._name}{name}[{i}].") for i, value in enumerate(values)]

    def optional(self, get: Callable[[str], T], name: str) -> T | None:
        """Returns what `get` returns of a member, None where that is null."""
        return None if self._get(name) is None else get(name)

    def make(self, kind: type[T], /, **members: Any) -> T:
        """Returns a dataclass of these members, which checks them.

        Raises:
            DatasetFormatError: it refuses them.
        """
        try:
            return kind(**members)
        except ConfigError as error:
            where = f" in `{self._name.rstrip('.')}`" if self._name else ""
            message = f"`{self._path}`{where}: {error.message}"
            raise DatasetFormatError(message, hint=damage_hint(self._path)) from error

    def _get(self, name: str) -> Any:
        if name not in self.members:
            message = f"`{self._path}`: expected `{self._name}{name}`, found none"
            raise DatasetFormatError(message, hint=damage_hint(self._path))
        return self.members[name]

    def _wrong(self, name: str, expected: str) -> DatasetFormatError:
        found = repr(self.members[name])
        if len(found) > _MOST_SHOWN:
            found = f"{found[:_MOST_SHOWN]}…"
        message = f"`{self._path}`: expected `{self._name}{name}` to be {expected}, found {found}"
        return DatasetFormatError(message, hint=damage_hint(self._path))


def parse_manifest_json(data: bytes, path: str, *, most_bytes: int) -> Any:
    """Returns the value that the JSON of a manifest holds.

    Raises:
        DatasetFormatError: it is no JSON, or more than so many bytes of it.
    """
    try:
        return parse_json(data, most_bytes=most_bytes)
    except UnusableJsonError as error:
        message = f"`{path}`: expected JSON, found {len(data)} bytes that are none: {error}"
        raise DatasetFormatError(message, hint=damage_hint(path)) from error


def damage_hint(path: str) -> str:
    """Returns what to do about a manifest that is not what it should be."""
    name = os.path.basename(path)
    return f"`{name}` is damaged or foreign; write the pair again, or remove the file to do without it"
