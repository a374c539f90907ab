"""What programs took out of the reference's modules before these were replaced."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_DEFINED = (type, FunctionType, BuiltinFunctionType)


@dataclass(frozen=True, slots=True)
class TakenName:
    """A global name that stands for a module of the reference, or for a class or function of one.

    Attributes:
        holder: the module that has the name.
        name: the name in it.
        module: the name of the reference's module.
        original: what the name is in that module; None for the module itself.
        value: what it stands for.
    """

    holder: ModuleType
    name: str
    module: str
    original: str | None
    value: Any

    @property
    def is_within(self) -> bool:
        """Whether the reference itself has it: its functions look their globals up when they run."""
        return self.holder.__name__.partition(".")[0] == "megatron"

    def __str__(self) -> str:
        return f"{self.holder.__name__}.{self.name}"


def taken_names(modules: Mapping[str, ModuleType]) -> Iterator[TakenName]:
    """Yields the global names of all other modules that stand for these modules, their classes or their functions.

    Args:
        modules: the reference's modules, by name.
    """
    numbers = {id(module): name for name, module in modules.items()}
    for holder in list({id(module): module for module in sys.modules.values()}.values()):
        if not isinstance(holder, ModuleType) or id(holder) in numbers:
            continue
        for name, value in list(vars(holder).items()):
            if id(value) in numbers:
                if f"{holder.__name__}.{name}" not in modules:  # a package has its modules, which is seen to
                    yield TakenName(holder, name, numbers[id(value)], None, value)
            elif issubclass(type(value), _DEFINED):  # `isinstance` would ask some for more
                module, original = str(value.__module__), str(value.__name__)
                if module in modules and vars(modules[module]).get(original) is value:
                    yield TakenName(holder, name, module, original, value)


def subclasses(modules: Mapping[str, ModuleType]) -> list[type]:
    """Returns the classes that were derived from those of these modules by others, as "module.Class"."""
    waiting = [
        value
        for name, module in modules.items()
        for value in vars(module).values()
        if issubclass(type(value), type) and value.__module__ == name
    ]
    known = set(waiting)
    found = []
    while waiting:
        for derived in type.__subclasses__(waiting.pop()):
            if derived not in known:
                known.add(derived)
                waiting.append(derived)
                if derived.__module__ not in modules:
                    found.append(derived)
    return sorted(found, key=lambda derived: (derived.__module__, derived.__qualname__))
