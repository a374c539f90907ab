"""What configurations show of themselves: every setting that they have, wherever it is described, and its value."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any

from tokenloom.storage.secrets import redacted

_HEADING = "Attributes:"
_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): ")


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
        chosen = [
            f"{each.name}={redacted(repr(value))}"
            for each in fields(self)  # type: ignore[arg-type]  # its subclasses are dataclasses
            if each.init and (value := getattr(self, each.name)) != _default(each)
        ]
        return f"{type(self).__name__}({', '.join(chosen)})"


def with_inherited(cls: type) -> str:
    """Returns the docstring of a class, with the settings that classes above it describe behind its own.

    Args:
        cls: a class whose docstring lists its settings under `Attributes:`.
    """
    own = inspect.cleandoc(cls.__doc__ or "")
    before, entries, after = _parsed(own)
    known = {name for names, _ in entries for name in names}
    for base in cls.__mro__[1:]:
        _, inherited, _ = _parsed(_own_docstring(base))
        for names, text in inherited:
            left = [name for name in names if name not in known]
            known.update(left)
            if left:
                entries.append((left, text))
    if not entries:
        return own
    listed = "\n".join(f"    {', '.join(names)}: {text}" for names, text in entries)
    return "\n\n".join(part for part in (before, f"{_HEADING}\n{listed}", after) if part)


def _own_docstring(base: type) -> str:
    """Returns the docstring of a class, if it has one; completed already where it is of settings."""
    return inspect.cleandoc(vars(base).get("__doc__") or "") if issubclass(base, ShowsSettings) else ""


def _parsed(docstring: str) -> tuple[str, list[tuple[list[str], str]], str]:
    """Returns what stands before the settings, the settings as names and text, and what follows."""
    before, heading, rest = docstring.partition(_HEADING + "\n")
    if not heading:
        return docstring, [], ""
    body, _, after = rest.partition("\n\n")
    entries: list[tuple[list[str], str]] = []
    for line in body.splitlines():
        if found := _ENTRY.match(line):
            entries.append((found[1].split(", "), line[found.end() :]))
        elif entries:
            names, text = entries[-1]
            entries[-1] = names, f"{text}\n{line}"
    return before.rstrip(), entries, after.strip()


def _default(each: Field[Any]) -> Any:
    """Returns the value that a setting has where none is given."""
    return each.default_factory() if each.default_factory is not MISSING else each.default
