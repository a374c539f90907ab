"""What a class of a user's own changed, and which fast methods of ours would pass it by: one rule, asked everywhere.

A fast method gives by one call what a hook would give one by one. A class that overrides the hook and inherits the
fast method has changed the former only, so the latter must not be used: whoever is about to asks its `Shortcut`. A
class that overrides both, the fast method where the hook is or nearer to the object, answers for it, and its own is
used.

Ours is what was written in a module of this package. So mixins, functions put into a class later, attributes of a
single object and wrappers all count as what they are, whatever they call themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.kernels import KnownTypes, type_tag

_PACKAGE = __name__.partition(".")[0]


class Remembered:
    """What holds for the objects of a class, as long as nobody changes the class or puts something into an object.

    Asking for what is remembered costs about 0.1 µs, whatever it took to find out.

    Args:
        names: attributes that it depends on.
        find: says of an object whether it holds, for all objects of its class that have none of these of their own.

    Attributes:
        known: whether it is remembered for an object; if not, ask the whole.
    """

    __slots__ = ("_add", "_find", "_names", "known")

    def __init__(self, names: Iterable[str], find: Callable[[Any], bool]) -> None:
        # Python looks for special methods in the class alone.
        self._names = frozenset(name for name in names if not name.startswith("__"))
        types = KnownTypes(sorted(self._names))
        self.known: Callable[[Any], bool] = types.has
        self._add = types.add
        self._find = find

    def __call__(self, obj: Any) -> bool:
        """Whether it holds; False for an object that has one of the attributes of its own."""
        if self.known(obj):
            return True
        for name in self._names:  # a class gets its number when it is asked for something
            getattr(type(obj), name, None)
        tag = type_tag(obj)  # first: the class may be changed meanwhile
        if not self._names.isdisjoint(getattr(obj, "__dict__", ())) or not self._find(obj):
            return False
        self._add(tag)
        return True


@dataclass(frozen=True, slots=True)
class _Provider:
    """Where an object has a method from.

    Attributes:
        level: 0 for the object itself, else 1 for its class and rising towards `object`.
        owner: the name of the class.
        is_own: whether it is a user's, not ours.
    """

    level: int
    owner: str
    is_own: bool


class Shortcut:
    """A fast method, and the hooks that it does not ask.

    Args:
        method: the fast method; None for something that is no method of the object, and that no class can answer for.
        skips: the hooks.
        asked_by_hooks: whether the hooks, as we define them, ask the method: then it may be overridden alone.
    """

    def __init__(self, method: str | None, *, skips: tuple[str, ...], asked_by_hooks: bool = False) -> None:
        self.method = method
        self.skips = skips
        self.asked_by_hooks = asked_by_hooks
        self.names: tuple[str, ...] = skips if method is None else (method, *skips)
        self._safe = Remembered(self.names, lambda obj: self._find(obj) is None)
        self.known: Callable[[Any], bool] = self._safe.known
        """Whether it is remembered that the method skips nothing of an object; if not, ask `skipped`."""

    def skipped(self, obj: Any) -> str | None:
        """Returns the hook of a user's own that the method would skip, such as "Mine.__getitem__"; None if it is safe.

        What is put into a class or an object later is seen.

        Raises:
            ConfigError: the class overrides the method, but none of the hooks, which would show other data.
        """
        return None if self.known(obj) or self._safe(obj) else self._find(obj)

    def _find(self, obj: Any) -> str | None:
        method = None if self.method is None else _provider(obj, self.method)
        hooks = [(name, provider) for name in self.skips if (provider := _provider(obj, name)) is not None]
        own = [(name, provider) for name, provider in hooks if provider.is_own]
        for name, provider in own:
            if method is None or not method.is_own or method.level > provider.level:
                return f"{provider.owner}.{name}"
        if method is not None and method.is_own and hooks and not own and not self.asked_by_hooks:
            message = (
                f"`{method.owner}` overrides `{self.method}`, but not `{self.skips[0]}`, which would show other data"
            )
            raise ConfigError(message, hint=f"override `{self.skips[0]}`, or both")
        return None


def overrides(obj: Any, name: str) -> bool:
    """Whether an object has a method from a user's class, not from ours."""
    provider = _provider(obj, name)
    return provider is not None and provider.is_own


def is_ours(function: Any) -> bool:
    """Whether a function was written in this package, whatever it calls itself."""
    return _is_ours(function, type(function))


def class_overrides(cls: type, name: str) -> bool:
    """Whether instances of a class have a method from a user's class, not from ours."""
    for base in cls.__mro__:
        if name in vars(base):
            return not _is_ours(vars(base)[name], base)
    return False


@dataclass(frozen=True, slots=True)
class Uncalled:
    """A hook that nothing calls here.

    Attributes:
        remedy: what to override, or to do, instead.
        unless: methods of which a class that overrides one may have the hook for itself.
    """

    remedy: str
    unless: tuple[str, ...] = ()


def refuse_uncalled(obj: Any, hooks: Mapping[str, Uncalled]) -> None:
    """Raises if an object has a hook of a user's own that nothing calls: it would have no effect, silently.

    Args:
        obj: an object of any class.
        hooks: the hooks, by name.

    Raises:
        ConfigError: it has one.
    """
    for name, hook in hooks.items():
        if not hasattr(type(obj), name):
            continue
        provider = _provider(obj, name)
        if provider is None or not provider.is_own or any(overrides(obj, other) for other in hook.unless):
            continue
        message = f"`{provider.owner}` overrides `{name}`, which tokenloom does not call"
        raise ConfigError(message, hint=hook.remedy)


def _provider(obj: Any, name: str) -> _Provider | None:
    """Returns where an object has an attribute from; None if neither it nor its class has it."""
    attributes = getattr(obj, "__dict__", {})
    if name in attributes and not name.startswith("__"):  # Python looks for special methods in the class alone
        return _Provider(0, type(obj).__name__, not _is_ours(attributes[name], type(obj)))
    for level, cls in enumerate(type(obj).__mro__, start=1):
        if name in vars(cls):
            return _Provider(level, cls.__name__, not _is_ours(vars(cls)[name], cls))
    return None


def _is_ours(value: Any, owner: type) -> bool:
    """Whether an attribute was written in this package.

    A function is where its global names are: a decorator that passes `__module__` on is none of ours.
    """
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    if isinstance(value, MethodType):  # of another object, put into this one
        value = value.__func__
    if type(value) is FunctionType:
        module = value.__globals__.get("__name__", "")
    elif callable(value) and not isinstance(value, type):  # put there: in a class body, hooks are functions
        module = type(value).__module__
    else:
        module = owner.__module__
    return str(module).partition(".")[0] == _PACKAGE
