"""Attributes that are set when the first of them is asked for."""

from __future__ import annotations

from typing import Any


class SetLater:
    """An attribute that a method sets, with others, when it is first asked for; afterwards it is one like any other.

    Python finds what the object holds before it asks this, so that an object in use pays next to nothing. (With a
    `__getattr__` in its class, every attribute would take some 30 ns longer.)

    Args:
        method: name of the method, which sets the attribute or raises. Two threads may call it at once.
        when: name of an attribute without which the method must not be called; None for none.
    """

    __slots__ = ("_method", "_name", "_when")

    def __init__(self, method: str, *, when: str) -> None:
        self._method = method
        self._when = when
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        """Returns the attribute of an object; of a class, this."""
        if obj is None:
            return self
        if self._when not in obj.__dict__:
            message = f"{type(obj).__name__!r} object has no attribute {self._name!r}"
            raise AttributeError(message)
        if self._name not in obj.__dict__:  # another thread may have set it
            getattr(obj, self._method)()
        return obj.__dict__[self._name]
