"""Finds the methods that a user's class overrides, and the stack level of the user's code for warnings.

A fast method such as `batch` replaces many calls of a hook such as `__getitem__`. If a user's class overrides the hook
but not the fast method, calling the fast method would skip the override. So callers check, once per object (on creation
or unpickling), which of the two methods is overridden in the more derived class. Later assignments have no effect.

A method counts as tokenloom's if its code is defined in a module of this package, whatever the method's `__module__`
says. The same rule holds for mixins, patched functions, wrappers, and attributes of an object.
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
    """A hook of Megatron that tokenloom never calls; overriding it has no effect.

    Attributes:
        remedy: hint of the error, which says what to override or do instead.
        unless: names of methods that may call the hook themselves; if one of them is overridden, there is no error.
    """

    remedy: str
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """The methods of an object, or of a class, that a user's code overrides.

    Attributes:
        cls: the class, or the class of the object.
        found: (level, name of overriding class) by method. Level 0 is the object, level k the k-th class in the MRO.
    """

    cls: type
    found: Mapping[str, tuple[int, str]]

    @staticmethod
    def of(obj: Any, names: tuple[str, ...]) -> Overrides:
        """Finds which of the methods `names` of an object or a class are overridden; caches the result per class."""
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
        """Returns the first override among `hooks` that `method` skips, such as "Mine.__getitem__"; None if none."""
        nearest, _ = self.found.get(method, (sys.maxsize, ""))
        for hook in hooks:
            level, owner = self.found.get(hook, (sys.maxsize, ""))
            if level < nearest:
                return f"{owner}.{hook}"
        return None

    def refuse_alone(self, method: str, *hooks: str) -> None:
        """Raises `ConfigError` if `method` is overridden but none of `hooks`: these would return different data."""
        if method in self.found and self.found.keys().isdisjoint(hooks):
            _, owner = self.found[method]
            message = f"`{owner}` overrides `{method}` but not `{hooks[0]}`: the methods would return different data"
            raise ConfigError(message, hint=f"override `{hooks[0]}`, or both methods")

    def refuse_uncalled(self, hooks: Mapping[str, Uncalled]) -> None:
        """Raises `ConfigError` if a hook is overridden but no method in the hook's `unless` is."""
        for name, hook in hooks.items():
            if name in self.found and self.found.keys().isdisjoint(hook.unless):
                message = f"`{self.found[name][1]}` overrides `{name}`, which tokenloom does not call"
                raise ConfigError(message, hint=hook.remedy)


_MOST_KNOWN = 1000
_known: dict[tuple[Any, ...], tuple[list[Any], Overrides]] = {}
"""Results of `Overrides.of` by class, method names and method ids; stores the methods, too, so that no id is reused."""


def _find(kind: type, own: Mapping[str, Any], names: tuple[str, ...]) -> Overrides:
    found = {}
    places = [(kind, own), *((base, vars(base)) for base in kind.__mro__)]
    for name in names:
        for level, (owner, attributes) in enumerate(places):
            if name in attributes and (level or not name.startswith("__")):  # Python ignores an instance's dunders
                if not is_ours(attributes[name], owner):
                    found[name] = level, owner.__name__
                break
    return Overrides(kind, found)


def overrides(obj: Any, *names: str) -> bool:
    """Returns whether a user's code overrides any of the methods `names` of an object or a class."""
    return bool(Overrides.of(obj, names).found)


def is_ours(value: Any, owner: type = FunctionType) -> bool:
    """Returns whether `value`, found as an attribute of class `owner`, is defined in this package.

    A function counts as defined in the module of its globals, because decorators copy `__module__`.
    """
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    elif isinstance(value, (staticmethod, classmethod, MethodType)):  # or an assigned method of another object
        value = value.__func__
    if type(value) is FunctionType:
        module = value.__globals__.get("__name__", "")
    elif callable(value) and not isinstance(value, type):  # a callable object, assigned to the class
        module = type(value).__module__
    else:
        module = owner.__module__
    return module == _PACKAGE or str(module).startswith(f"{_PACKAGE}.")


def level_outside() -> int:
    """Returns the `stacklevel` with which `warnings.warn` names the innermost frame of the user's code."""
    level, frame, inner = 1, sys._getframe(1), (_PACKAGE, "contextlib")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inner:
        level, frame = level + 1, frame.f_back
    return level
