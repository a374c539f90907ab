"""What there is of one kind, by name: how a package offers things of its own and takes those of others."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from tokenloom.errors import ConfigError

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """Things by name, in order; each is imported when it is first asked for, so that listing the names costs nothing.

    Safe from several threads once everything is added. A process that is started anew has what its own modules add.

    Args:
        kind: name of the kind, for messages ("input format").
        homes: where each of the package's own is, by name: `module:attribute`.

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
        self.data.update(dict.fromkeys(homes))  # type: ignore[arg-type]  # until they are asked for

    def __getitem__(self, name: str) -> Entry:
        if self.data[name] is None:
            module, _, attribute = self._homes[name].partition(":")
            self.data[name] = getattr(import_module(module), attribute)
        return self.data[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Adds a thing.

        Raises:
            ConfigError: there is one of this name.
        """
        if name in self:
            message = f"expected a name that no {self._kind} has, got {name!r}"
            raise ConfigError(message, hint=f"there are {', '.join(self)}")
        self.data[name] = entry
