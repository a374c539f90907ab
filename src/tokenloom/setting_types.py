"""Whether settings have the types that their classes declare, before anything is done with them."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number

Bytes = Annotated[int, "bytes"]
"""A size in bytes; on the command line also as 500MB or 10GiB."""

Count = Annotated[int, "count"]
"""A number from 1 on."""

Number = Annotated[int, "number"]
"""A number from 0 on."""

Seconds = Annotated[float, "seconds"]
"""A time above 0, in seconds."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def check_types(settings: object) -> None:
    """Checks the settings of a dataclass that are declared as int, float, bool, str or choices, with or without None.

    Integers of NumPy become int, so that they are written as such into descriptions. Fields that a class outside of
    this package declares are its own affair; so are fields of other types.

    Raises:
        ConfigError: a text, float or truth value where an integer is declared, and so on; the message names the field.
    """
    declared: dict[str, tuple[Any, bool]] = _declared(type(settings))  # type: ignore[arg-type]  # classes are hashable
    for name, (kind, optional) in declared.items():
        value = getattr(settings, name)
        if type(value) is kind or (value is None and optional):
            continue
        if isinstance(kind, tuple):
            if not isinstance(value, str) or value not in kind:
                message = f"expected `{name}` to be one of {', '.join(map(repr, kind))}, found {value!r}"
                raise ConfigError(message)
            continue
        if kind is int:
            object.__setattr__(settings, name, checked_integer(name, value))
        elif kind is float:
            checked_number(name, value)
        elif kind is str:
            if not isinstance(value, str) and not (isinstance(value, os.PathLike) and "path" in name):
                message = f"expected a text as {name}, found {value!r}"
                raise ConfigError(message)
        elif type(value).__name__ != "bool" and not (type(value) is int and value in (0, 1)):  # numpy.bool is one
            message = f"expected {name} to be True or False, found {value!r}"
            raise ConfigError(message)


def checked_path(name: str, path: object, *, example: str | None = None) -> str:
    """Returns a path, a text or an object that stands for one, as a text; refuses all else, with an example as hint."""
    if isinstance(path, (str, os.PathLike)) and isinstance(text := os.fspath(path), str):
        return text
    message = f"expected a path as `{name}`, found {path!r}"
    raise ConfigError(message, hint=example)


def checked_paths(name: str, paths: object, *, example: str | None = None) -> list[str]:
    """Returns a list of paths as texts; refuses one path, since a text would be taken for a path per letter."""
    if isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable):
        message = f"expected a list of paths as `{name}`, found {paths!r}"
        raise ConfigError(message, hint=f"write [{paths!r}]" if isinstance(paths, (str, os.PathLike)) else example)
    return [checked_path(name, path, example=example) for path in paths]


def checked_output_prefix(name: str, path: object) -> str:
    """Returns the prefix of an output, which must end with a name: without one, files would have names like `.bin`."""
    text = checked_path(name, path, example="such as `data/corpus`")
    if os.path.basename(text) in ("", ".", ".."):
        message = f"expected a path that ends with a name as `{name}`, found {text!r}"
        raise ConfigError(message, hint=f"such as {os.path.join(text, 'corpus')!r}")
    return text


def check_local_folder(name: str, path: str | os.PathLike[str] | None) -> None:
    """Checks that a folder is one of this machine, or None: an address would become a folder named `s3:`."""
    if path is None:
        return
    text = os.fspath(path)
    if _ADDRESS.match(text):
        message = f"expected a local folder as {name}, found the address {text!r}"
        raise ConfigError(message, hint="name a folder of this machine, or of a file system that is mounted on it")
    if not text:
        message = f"expected a local folder as {name}, found an empty text"
        raise ConfigError(message, hint="write `.` for the working directory")


@cache
def _declared(kind: type) -> dict[str, tuple[Any, bool]]:
    """Returns, by field, the type it has to have, or the texts that it may be, and whether None will do."""
    found: dict[str, tuple[Any, bool]] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.partition(".")[0] != __name__.partition(".")[0]:
            continue
        hints = typing.get_type_hints(owner) if "__annotations__" in vars(owner) else {}
        for name in vars(owner).get("__annotations__", {}):
            is_union = typing.get_origin(hints[name]) in (typing.Union, UnionType)
            options = set(typing.get_args(hints[name]) if is_union else (hints[name],))
            found.pop(name, None)
            if len(rest := options - {NoneType}) == 1:
                [declared] = rest
                if typing.get_origin(declared) is Literal:
                    found[name] = (typing.get_args(declared), NoneType in options)
                elif declared in (int, float, bool, str):
                    found[name] = (declared, NoneType in options)
    return found
