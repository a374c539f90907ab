"""What configurations show of themselves: every setting that they have, wherever it is described, and its value."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

from tokenloom.storage.secrets import redacted

_HEADING = "Attributes:"
_ENTRY = re.compile(r"\n {4}(\w+(?:, \w+)*): .*(?:\n {5,}.*)*")


class ShowsSettings:
    """A dataclass of settings whose `help` describes inherited settings too, and whose `repr` is what differs.

    Each setting is described once, in the docstring of the class that declares it; a class that describes it again has
    the last word.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Completes the docstring of a class by the settings that it inherits."""
        super().__init_subclass__(**options)
        if cls.__doc__ is not None and "__doc__" in vars(cls):
            cls.__doc__ = with_inherited(cls)
        if "__repr__" not in vars(cls):  # else the decorator of dataclasses writes one
            cls.__repr__ = ShowsSettings.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        chosen = []
        for each in fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.init and (value := getattr(self, each.name)) != default:
                chosen.append(f"{each.name}={redacted(repr(value))}")
        return f"{type(self).__name__}({', '.join(chosen)})"


def with_inherited(cls: type) -> str:
    """Returns the docstring of a class, with the settings that classes above it describe behind its own."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    own = _entries(doc)
    known = {name for found in own for name in found[1].split(", ")}
    inherited = []
    for base in cls.__mro__[1:]:  # each completed already where it is of settings
        described = vars(base).get("__doc__") if issubclass(base, ShowsSettings) else None
        for found in _entries(inspect.cleandoc(described or "")):
            if not known.issuperset(found[1].split(", ")):
                known.update(found[1].split(", "))
                inherited.append(found[0])
    if not own:
        return doc + (f"\n\n{_HEADING}" if inherited else "") + "".join(inherited)
    end = own[-1].end()
    return doc[:end] + "".join(inherited) + doc[end:]


def _entries(doc: str) -> list[re.Match[str]]:
    return [*_ENTRY.finditer(doc, doc.index(_HEADING))] if _HEADING in doc else []
