"""Registries: objects of one kind by name, of this package and of users."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from tokenloom.errors import ConfigError

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """Objects by name, in order; each is imported on first use, so listing the names is cheap.

    Thread-safe once everything is added. A new process has only the entries that its own modules add.

    Args:
        kind: name of the kind, for messages ("input format").
        homes: places of the package's own objects, by name: `module:attribute`.

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
        """Adds an object.

        Raises:
            ConfigError: the name is taken.
        """
        if name in self:
            raise ConfigError(f"{self._kind} {name!r} exists", hint=f"there are {', '.join(self)}")
        self.data[name] = entry
