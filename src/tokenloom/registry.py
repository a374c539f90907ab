"""A registry of objects by name, such as input formats; users can add their own objects."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from tokenloom.errors import ConfigError

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """A mapping from names to objects, each imported on first use; a name cannot be assigned twice.

    Thread-safe once all objects are added. A user must add an object in each process that uses the object.

    Args:
        kind: noun for an object in error messages, such as "input format".
        homes: {name: "module:attribute"} with the location of each object of the package.

    Example:
        >>> functions = Registry[object]("function", {"dumps": "json:dumps"})
        >>> functions["mine"] = len
        >>> list(functions), functions["dumps"]([1])
        (['dumps', 'mine'], '[1]')
    """

    def __init__(self, kind: str, homes: Mapping[str, str]) -> None:
        super().__init__()
        self._kind = kind
        self._homes = homes
        self.data.update(dict.fromkeys(homes))  # type: ignore[arg-type]  # None until imported

    def __getitem__(self, name: str) -> Entry:
        if self.data[name] is None:
            module, _, attribute = self._homes[name].partition(":")
            self.data[name] = getattr(import_module(module), attribute)
        return self.data[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Adds an object; raises `ConfigError` if the registry already has an object of this name."""
        if name in self:
            raise ConfigError(f"{self._kind} {name!r} already exists", hint=f"use a name other than {', '.join(self)}")
        self.data[name] = entry
