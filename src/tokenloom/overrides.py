"""What is ours and what is a user's: methods of an object, asked once, when it is made or unpickled; and callers.

A fast method gives by one call what a hook would give one by one. A class that overrides the hook and inherits the
fast method has changed the former only, so the latter must not be used. A class that overrides both, the fast method
where the hook is or nearer to the object, answers for it, and its own is used.

Ours is what was written in a module of this package. So mixins, functions put into a class, attributes of a single
object and wrappers all count as what they are, whatever they call themselves. What is put into a class or an object
after the object was made is not seen.
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
    """A hook that nothing calls, so that overriding it would have no effect, silently.

    Attributes:
        remedy: what to override, or to do, instead.
        unless: methods of which a class that overrides one may have the hook for itself.
    """

    remedy: str
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """Those of some methods of an object that are a user's own.

    Attributes:
        cls: the class of the object.
        found: how near to the object each of them is, and the name of its class: 0 is in the object itself, 1 in its
            class, rising towards `object`.
    """

    cls: type
    found: Mapping[str, tuple[int, str]]

    @staticmethod
    def of(obj: Any, names: tuple[str, ...]) -> Overrides:
        """Looks for methods of an object or a class."""
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
        """Returns the hook that a fast method would skip, such as "Mine.__getitem__"; None if it gives the same."""
        nearest, _ = self.found.get(method, (sys.maxsize, ""))
        for hook in hooks:
            level, owner = self.found.get(hook, (sys.maxsize, ""))
            if level < nearest:
                return f"{owner}.{hook}"
        return None

    def refuse_alone(self, method: str, *hooks: str) -> None:
        """Raises a `ConfigError` if a fast method is overridden, but none of its hooks, which would show other data."""
        if method in self.found and self.found.keys().isdisjoint(hooks):
            _, owner = self.found[method]
            message = f"`{owner}` overrides `{method}`, but not `{hooks[0]}`, which would show other data"
            raise ConfigError(message, hint=f"override `{hooks[0]}`, or both")

    def refuse_uncalled(self, hooks: Mapping[str, Uncalled]) -> None:
        """Raises a `ConfigError` if a hook is overridden that nothing calls."""
        for name, hook in hooks.items():
            if name in self.found and self.found.keys().isdisjoint(hook.unless):
                message = f"`{self.found[name][1]}` overrides `{name}`, which tokenloom does not call"
                raise ConfigError(message, hint=hook.remedy)


_MOST_KNOWN = 1000
_known: dict[tuple[Any, ...], tuple[list[Any], Overrides]] = {}
"""What was found in a class with these methods, which a start asks of each dataset of a blend.

The methods are kept, so that none that is patched later gets the number of one of them.
"""


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
    """Whether an object, or a class, has one of these methods from a user's class, not from ours."""
    return bool(Overrides.of(obj, names).found)


def is_ours(value: Any, owner: type = FunctionType) -> bool:
    """Whether a function, or another attribute of a class, was written in this package, whatever it calls itself.

    A function is where its global names are: a decorator that passes `__module__` on is none of ours.
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
    """Returns how many calls lie between the caller and the first line outside of this package: a `stacklevel`.

    What `contextlib` calls on the way counts as ours.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in (
        _PACKAGE,
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level
