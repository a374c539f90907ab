"""Annotated types of settings, and functions that validate settings."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number, wrong_value

Bytes = Annotated[int, "bytes"]
"""A size in bytes; on the command line also with a unit, such as 500MB or 10GiB."""

Count = Annotated[int, "count"]
"""An integer of 1 or more."""

Number = Annotated[int, "number"]
"""An integer of 0 or more."""

Seconds = Annotated[float, "seconds"]
"""A duration in seconds, above 0."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def check_types(settings: object) -> None:
    """Validates the types of a dataclass's values; raises `ConfigError` for the first value of a wrong type.

    Validates only fields that classes of this package declare as int, float, bool, str or `Literal`, optionally with
    None. Converts NumPy integers to int, so that the integers can be written as JSON.
    """
    declared: dict[str, tuple[Any, bool]] = _declared(type(settings))  # type: ignore[arg-type]  # classes are hashable
    for name, (kind, optional) in declared.items():
        value = getattr(settings, name)
        if type(value) is kind or (value is None and optional):
            continue
        if isinstance(kind, tuple):
            if not isinstance(value, str) or value not in kind:
                raise wrong_value(name, f"one of {', '.join(map(repr, kind))}", value)
            continue
        if kind is int:
            object.__setattr__(settings, name, checked_integer(name, value))
        elif kind is float:
            checked_number(name, value)
        elif kind is str:
            if not isinstance(value, str) and not (isinstance(value, os.PathLike) and "path" in name):
                raise wrong_value(name, "a string", value)
        elif type(value).__name__ != "bool" and not (type(value) is int and value in (0, 1)):  # or NumPy's bool
            raise wrong_value(name, "True or False", value)


def checked_path(name: str, path: object, *, example: str | None = None) -> str:
    """Validates that a value is a str or a path object, and returns a str; `example` is the hint of the error."""
    if isinstance(path, (str, os.PathLike)) and isinstance(text := os.fspath(path), str):
        return text
    raise wrong_value(name, "a path", path, hint=example)


def checked_paths(name: str, paths: object, *, example: str | None = None) -> list[str]:
    """Validates a list of paths; returns strings. A single string is an error: each letter would become a path."""
    if isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable):
        hint = f"write [{paths!r}]" if isinstance(paths, (str, os.PathLike)) else example
        raise wrong_value(name, "a list of paths", paths, hint=hint)
    return [checked_path(name, path, example=example) for path in paths]


def checked_output_prefix(name: str, path: object) -> str:
    """Validates that an output prefix ends with a file name; else the files would be named `.bin` and `.idx`."""
    text = checked_path(name, path, example="such as `data/corpus`")
    if os.path.basename(text) in ("", ".", ".."):
        raise ConfigError(
            f"`{name}`: must end with a file name, got {text!r}", hint=f"write {os.path.join(text, 'corpus')!r}"
        )
    return text


def check_local_folder(name: str, path: str | os.PathLike[str] | None) -> None:
    """Validates that a folder is None or a local path; a URL such as `s3://…` would create a folder named `s3:`."""
    if path is None:
        return
    text = os.fspath(path)
    if _ADDRESS.match(text):
        hint = "pass a folder on this machine or on a mounted file system"
        raise ConfigError(f"`{name}`: must be a local folder, got the URL {text!r}", hint=hint)
    if not text:
        raise ConfigError(f"`{name}`: must be a local folder, got ''", hint="write `.` for the working directory")


@cache
def _declared(kind: type) -> dict[str, tuple[Any, bool]]:
    """Returns {name: (type or allowed strings, whether None is allowed)} for the validated fields."""
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
