"""A registry of objects by name, such as input formats; users can add their own."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from tokenloom.errors import ConfigError

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """A mapping from names to objects, each imported on first use; a name cannot be assigned twice.

    Thread-safe once all objects are added. An object added by a user exists only in processes that also add it.

    Args:
        kind: what the objects are, for error messages, such as "input format".
        homes: locations of the package's own objects by name, as "module:attribute".

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
        """Adds an object; raises `ConfigError` if the name is taken."""
        if name in self:
            raise ConfigError(f"{self._kind} {name!r} is taken", hint=f"choose a name other than {', '.join(self)}")
        self.data[name] = entry
