"""What each error and warning means, why it usually comes, and what to do: from the docstrings of `errors.py`."""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass

from tokenloom import errors
from tokenloom.errors import ConfigError, TokenloomError, TokenloomWarning

_CAUSES, _REMEDY, _EXAMPLE = "Usual causes: ", "What to do: ", "Such as "


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of an error or a warning.

    Attributes:
        name: name of the class.
        bases: names of the classes of Python's that it is caught as, too.
        meaning: what it means, in a sentence or two.
        example: a message, in quotes; None for none.
        causes: why it usually comes; None where that is said of its classes below.
        remedy: what to do; likewise.
    """

    name: str
    bases: tuple[str, ...]
    meaning: str
    example: str | None
    causes: str | None
    remedy: str | None

    @property
    def paragraphs(self) -> list[str]:
        """All of it, as paragraphs."""
        example = self.example and f"{_EXAMPLE}{self.example}"
        causes = self.causes and f"{_CAUSES}{self.causes}"
        return [each for each in (self.meaning, example, causes, self.remedy and f"{_REMEDY}{self.remedy}") if each]


def explanations() -> dict[str, Explanation]:
    """Returns what is known of every error and warning, errors first, in the order of `errors.py`."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    ordered = [kind for base in (TokenloomError, TokenloomWarning) for kind in kinds if issubclass(kind, base)]
    return {kind.__name__: _explained(kind) for kind in ordered}


def explanation_of(name: str) -> Explanation:
    """Returns what is known of one; capitals do not matter.

    Raises:
        ConfigError: there is no error or warning of that name.
    """
    known = explanations()
    by_lower = {each.lower(): each for each in known}
    if (found := by_lower.get(name.rpartition(".")[2].lower())) is not None:
        return known[found]
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    message = f"expected the name of an error or a warning, found {name!r}"
    hint = f"did you mean `{by_lower[near[0]]}`?" if near else "`tokenloom explain` lists them"
    raise ConfigError(message, hint=hint)


def _explained(kind: type) -> Explanation:
    parts = {"": ""}
    part = ""
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        begun = re.match(f"{_CAUSES}|{_REMEDY}|{_EXAMPLE}", line)
        if begun:
            part = begun[0]
        parts[part] = f"{parts.get(part, '')} {line.removeprefix(part)}".strip()
    return Explanation(
        name=kind.__name__,
        bases=tuple(
            base.__name__ for base in kind.__bases__ if not issubclass(base, TokenloomError | TokenloomWarning)
        ),
        meaning=parts[""],
        example=parts.get(_EXAMPLE),
        causes=parts.get(_CAUSES),
        remedy=parts.get(_REMEDY),
    )
