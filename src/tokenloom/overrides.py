"""Finds which methods of an object a user overrides, once, when it is made or unpickled; and the caller's line.

A fast method replaces many calls of a hook. If a class overrides the hook and inherits the fast method, the fast method
must not be used. If it overrides both, the fast method in the same class or nearer to the object, its own is used.

A method is ours if a module of this package defines it, whatever its `__module__`; so are mixins, patched functions,
attributes of an object and wrappers judged. Changes after the object was made are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from tokenloom.errors import ConfigError

_PACKAGE = __name__.partition(".")[0]


class Uncalled(NamedTuple):
    """A hook that nothing calls, so that overriding it has no effect.

    Attributes:
        remedy: what to override or do instead.
        unless: methods; a class that overrides one of them may use the hook itself.
    """

    remedy: str
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """The methods of an object that a user overrides.

    Attributes:
        cls: the class of the object.
        found: level and class name of each: level 0 is the object itself, 1 its class, rising towards `object`.
    """

    cls: type
    found: Mapping[str, tuple[int, str]]

    @staticmethod
    def of(obj: Any, names: tuple[str, ...]) -> Overrides:
        """Finds overridden methods of an object or a class."""
        kind: type = obj if isinstance(obj, type) else type(obj)
        own = getattr(obj, "__dict__", {})
        if not own.keys().isdisjoint(names):
            return _find(kind, own, names)
        methods = [getattr(kind, name, None) for name in names]
        key = (kind, names, *map(id, methods))
        if (known := _known.get(key)) is None:
            known = methods, _find(kind, own, names)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = known
        return known[1]

    def skipped(self, method: str, *hooks: str) -> str | None:
        """Returns the hook that a fast method would skip, such as "Mine.__getitem__"; None if none."""
        nearest, _ = self.found.get(method, (sys.maxsize, ""))
        for hook in hooks:
            level, owner = self.found.get(hook, (sys.maxsize, ""))
            if level < nearest:
                return f"{owner}.{hook}"
        return None

    def refuse_alone(self, method: str, *hooks: str) -> None:
        """Raises `ConfigError` if a fast method is overridden without any of its hooks, which would give other data."""
        if method in self.found and self.found.keys().isdisjoint(hooks):
            _, owner = self.found[method]
            message = f"`{owner}` overrides `{method}`, but not `{hooks[0]}`, which would show other data"
            raise ConfigError(message, hint=f"override `{hooks[0]}`, or both")

    def refuse_uncalled(self, hooks: Mapping[str, Uncalled]) -> None:
        """Raises `ConfigError` if an uncalled hook is overridden."""
        for name, hook in hooks.items():
            if name in self.found and self.found.keys().isdisjoint(hook.unless):
                message = f"`{self.found[name][1]}` overrides `{name}`, which tokenloom does not call"
                raise ConfigError(message, hint=hook.remedy)


_MOST_KNOWN = 1000
_known: dict[tuple[Any, ...], tuple[list[Any], Overrides]] = {}
"""Results by class and ids of its methods; the methods are kept, so that their ids are not used again."""


def _find(kind: type, own: Mapping[str, Any], names: tuple[str, ...]) -> Overrides:
    found = {}
    places = [(kind, own), *((base, vars(base)) for base in kind.__mro__)]
    for name in names:
        for level, (owner, attributes) in enumerate(places):
            if name in attributes and (level or not name.startswith("__")):  # Python asks the class for those
                if not is_ours(attributes[name], owner):
                    found[name] = level, owner.__name__
                break
    return Overrides(kind, found)


def overrides(obj: Any, *names: str) -> bool:
    """Whether a user overrides one of these methods of an object or a class."""
    return bool(Overrides.of(obj, names).found)


def is_ours(value: Any, owner: type = FunctionType) -> bool:
    """Whether an attribute of a class was written in this package.

    A function belongs to the module of its globals: decorators pass `__module__` on.
    """
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    elif isinstance(value, (staticmethod, classmethod, MethodType)):  # the last of another object, put into this one
        value = value.__func__
    if type(value) is FunctionType:
        module = value.__globals__.get("__name__", "")
    elif callable(value) and not isinstance(value, type):  # put there: in a class body, hooks are functions
        module = type(value).__module__
    else:
        module = owner.__module__
    return module == _PACKAGE or str(module).startswith(f"{_PACKAGE}.")


def level_outside() -> int:
    """Returns the `stacklevel` of the first line outside of this package and `contextlib`."""
    level, frame, inner = 1, sys._getframe(1), (_PACKAGE, "contextlib")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inner:
        level, frame = level + 1, frame.f_back
    return level
