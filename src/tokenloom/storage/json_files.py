"""JSON files: a parser with limits, and the conversion of dataclasses to and from JSON objects.

Each member is validated strictly by the annotation of its field: `int`, `float`, `str`, `bool`, `Any`, `Crc32`, a
dataclass, a `Literal` of strings (the dataclass itself must check the value) or, with X one of these, `X | None`,
`tuple[X, ...]` or `Mapping[str, X]`. A member must exist unless marked `MAY_BE_MISSING`; unknown members are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from tokenloom.errors import ConfigError, StorageError
from tokenloom.storage.versions import open_regular, read_at_most

MOST_BYTES = 64 << 20
"""Default size limit of a JSON file."""


class UnusableJsonError(ValueError):
    """Invalid or too large JSON. Callers put the name of the file before the message."""


def parse_json(
    data: bytes | str, *, most_bytes: int = MOST_BYTES, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parses JSON text or UTF-8 bytes; raises only `UnusableJsonError`, for invalid, too large or too deep JSON."""
    if len(data) > most_bytes:
        raise UnusableJsonError(f"expected at most {most_bytes} bytes, found {len(data)}")
    try:
        return json.loads(data, object_hook=object_hook)
    except RecursionError:
        raise UnusableJsonError("arrays and objects are nested too deeply") from None
    except MemoryError:
        raise UnusableJsonError(f"there is not enough memory to parse {len(data)} bytes") from None
    except ValueError as error:  # also for invalid UTF-8, and numbers with too many digits
        raise UnusableJsonError(str(error)) from error


def read_json(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> Any:
    """Reads a local JSON file with `parse_json`; raises `UnusableJsonError` also if the path is not a regular file."""
    try:
        handle = open_regular(os.fspath(path))
    except StorageError as error:
        raise UnusableJsonError(error.message) from error
    with open(handle, "rb", buffering=0):
        data = read_at_most(handle, most_bytes + 1)
    return parse_json(data, most_bytes=most_bytes)


Crc32 = Annotated[int, "8 hexadecimal digits"]
"""A field annotation: a checksum, written as 8 hexadecimal digits."""

MAY_BE_MISSING = {"may_be_missing": True}
"""Metadata of a field with a default: the member may be missing in a file, and is not written if its value is None."""

_HEX = frozenset("0123456789abcdef")

_EXPECTED = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_EXPECTED |= {list: "an array", dict: "an object"}

_MISSING = object()

_MOST_SHOWN = 60  # maximum number of characters of a wrong value in a message

T = TypeVar("T")


def from_members(kind: type[T], members: Any, name: str = "") -> T:
    """Makes a dataclass from a parsed JSON object; `name` is the path of the object within the file, for errors."""
    if type(members) is not dict:
        raise _wrong(members, name, _EXPECTED[dict])
    prefix, values = f"{name}." if name else "", {}
    for member, exact, read, _, may_be_missing in _fields_of(kind):
        value = members.get(member, _MISSING)
        if type(value) is exact:
            values[member] = value
        elif value is not _MISSING:
            values[member] = read(value, f"{prefix}{member}")
        elif not may_be_missing:
            raise UnusableJsonError(f": expected `{prefix}{member}`, found no such member")
    try:
        return kind(**values)
    except ConfigError as error:
        raise UnusableJsonError(f" in `{name}`: {error.message}" if name else f": {error.message}") from error


def from_versioned(kind: type[T], members: Any, version: int) -> T:
    """Calls `from_members` after checking that the object's member "version" equals `version`."""
    if type(members) is dict and (found := members.get("version")) != version:
        raise _wrong(found, "version", str(version))
    return from_members(kind, members)


def versioned_members_of(record: Any, version: int) -> dict[str, Any]:
    """Returns a dataclass as a JSON object that `from_versioned` can read."""
    return {"version": version, **members_of(record)}


def members_of(record: Any) -> dict[str, Any]:
    """Returns a dataclass as a JSON object, members in field order."""
    values = [(field, getattr(record, field.name)) for field in _fields_of(type(record))]
    return {
        field.name: None if value is None else field.write(value)
        for field, value in values
        if value is not None or not field.may_be_missing
    }


class _Field(NamedTuple):
    name: str
    exact: type[Any] | None  # values of exactly this type need no `read`
    read: Callable[[Any, str], Any]  # called with (JSON value, name for errors); returns the value of the field
    write: Callable[[Any], Any]  # converts a value of the field to JSON; not called for None
    may_be_missing: bool


_FIELDS: dict[type[Any], list[_Field]] = {}


def _fields_of(kind: type[Any]) -> list[_Field]:
    if kind not in _FIELDS:
        types = typing.get_type_hints(kind, include_extras=True)
        _FIELDS[kind] = [
            _Field(field.name, *_codec(types[field.name]), may_be_missing="may_be_missing" in field.metadata)
            for field in dataclasses.fields(kind)
        ]
    return _FIELDS[kind]


def _codec(annotation: Any) -> tuple[type[Any] | None, Callable[[Any, str], Any], Callable[[Any], Any]]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation == Crc32:
        return None, _read_crc32, "{:08x}".format
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return None, functools.partial(from_members, annotation), members_of
    if type(None) in arguments:
        exact, read, write = _codec(next(each for each in arguments if each is not type(None)))
        return exact, lambda value, name: None if value is None else read(value, name), write
    if origin is tuple:
        _, read, write = _codec(arguments[0])
        return None, functools.partial(_read_array, read), lambda values: [write(value) for value in values]
    if origin is Mapping and arguments[1] is not Any:
        _, read, write = _codec(arguments[1])
        return None, functools.partial(_read_mapping, read), lambda values: {n: write(v) for n, v in values.items()}
    if annotation is Any:
        return None, lambda value, _: value, lambda value: value
    exact = dict if origin is Mapping else str if origin is Literal else annotation
    return exact, functools.partial(_read_exactly, exact), lambda value: value


def _read_exactly(kind: type[Any], value: Any, name: str) -> Any:
    if type(value) is not kind:  # not `isinstance`: a boolean is not an integer here
        raise _wrong(value, name, _EXPECTED[kind])
    return value


def _read_crc32(value: Any, name: str) -> int:
    if len(_read_exactly(str, value, name)) == 8 and _HEX.issuperset(value):
        return int(value, 16)
    raise _wrong(value, name, "8 hexadecimal digits")


def _read_array(read: Callable[[Any, str], Any], values: Any, name: str) -> tuple[Any, ...]:
    return tuple([read(value, f"{name}[{i}]") for i, value in enumerate(_read_exactly(list, values, name))])


def _read_mapping(read: Callable[[Any, str], Any], values: Any, name: str) -> dict[str, Any]:
    return {each: read(value, f"{name}.{each}") for each, value in _read_exactly(dict, values, name).items()}


def _wrong(value: Any, name: str, expected: str) -> UnusableJsonError:
    found = repr(value)
    if len(found) > _MOST_SHOWN:
        found = f"{found[:_MOST_SHOWN]}…"
    what = f"`{name}` to be {expected}" if name else expected
    return UnusableJsonError(f": expected {what}, found {found}")
