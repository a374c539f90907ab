"""What there is of one kind, by name: how a package offers things of its own and takes those of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Generic, TypeVar

from tokenloom.errors import ConfigError

Entry = TypeVar("Entry")


class Registry(MutableMapping[str, Entry], Generic[Entry]):
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
        self._kind = kind
        self._homes = dict(homes)
        self._entries: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            module, _, attribute = self._homes[name].partition(":")
        entry: Entry = getattr(import_module(module), attribute)
        self._entries[name] = entry
        return entry

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Adds a thing.

        Raises:
            ConfigError: there is one of this name.
        """
        if name in self:
            message = f"expected a name that no {self._kind} has, got {name!r}"
            raise ConfigError(message, hint=f"there are {', '.join(self)}")
        self._homes[name] = ""
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._homes[name]
        self._entries.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)
