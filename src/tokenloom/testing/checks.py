"""Running checks one after the other, comparing samples to the last bit, and what it comes to."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConformanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was checked of an object, all of which holds. Printed, it is a line per check.

    Attributes:
        name: what was checked.
        passed: what holds, a sentence each.
        skipped: what was not checked, and why: mostly since it is optional, and the object does not offer it.
    """

    name: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.name}: {len(self.passed)} checks passed, {len(self.skipped)} skipped",
                *(f"  passed   {sentence}" for sentence in self.passed),
                *(f"  skipped  {sentence}: {reason}" for sentence, reason in self.skipped.items()),
            ]
        )


class NotCheckedError(Exception):
    """A check does not apply to this object; the message says why."""


def skip(reason: str) -> NoReturn:
    """Ends a check that does not apply.

    Raises:
        NotCheckedError: always.
    """
    raise NotCheckedError(reason)


def run_checks(name: str, checks: object) -> CheckReport:
    """Runs the checks of a class in their order, up to the first that fails.

    A check is a public method, whose docstring says what holds if it raises nothing; one that does not apply calls
    `skip`.

    Args:
        name: name of what is checked, for messages.
        checks: has the methods.

    Raises:
        ConformanceError: what a sentence says does not hold.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for each, method in vars(type(checks)).items():
        if each.startswith("_") or not isinstance(method, FunctionType):
            continue
        sentence = method.__doc__ or each
        try:
            method(checks)
        except NotCheckedError as reason:
            skipped[sentence] = str(reason)
        except ConformanceError as error:
            message = f"{name} fails the check that {sentence}: {error.message}"
            raise ConformanceError(message, hint=error.hint) from error.__cause__
        except Exception as error:
            error.add_note(f"while it was checked of {name} that {sentence}")
            raise
        else:
            passed.append(sentence)
    return CheckReport(name=name, passed=tuple(passed), skipped=skipped)


def pickled_copy(value: Any) -> Any:
    """Returns what worker processes that are no forks would have of an object.

    Raises:
        NotCheckedError: it cannot be pickled.
    """
    try:
        text = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        skip(f"it cannot be pickled, so worker processes must be forks: {error}")
    return pickle.loads(text)


def deviation(expected: object, found: object, *, hint: str | None = None) -> ConformanceError:
    """Returns the error for what is not as it must be, both in words."""
    message = f"expected {expected}, found {found}"
    return ConformanceError(message, hint=hint)


def require(condition: bool, expected: object, found: object) -> None:  # noqa: FBT001 - reads like `assert`
    """Raises unless something holds.

    Raises:
        ConformanceError: it does not hold.
    """
    if not condition:
        raise deviation(expected, found)


def require_same(found: Any, expected: Any, *, where: str) -> None:
    """Raises unless two values are the same: names and their order, lengths, dtypes, shapes and every number.

    Tensors count as arrays, Python numbers as arrays of them.

    Args:
        found: mappings, sequences, arrays, tensors or numbers, one within the other.
        expected: the same.
        where: what was asked for, as code.

    Raises:
        ConformanceError: they differ; the message says where first.
    """
    if isinstance(expected, Mapping):
        names = list(found) if isinstance(found, Mapping) else type(found).__name__
        require(names == list(expected), f"{list(expected)} in `{where}`", names)
        for name in expected:
            require_same(found[name], expected[name], where=f"{where}[{name!r}]")
    elif isinstance(expected, (tuple, list)):
        is_like = isinstance(found, (tuple, list)) and len(found) == len(expected)
        require(is_like, f"{len(expected)} values in `{where}`", _described(found))
        for number, value in enumerate(expected):
            require_same(found[number], value, where=f"{where}[{number}]")
    else:
        _require_same_array(as_array(found), as_array(expected), where)


def as_array(value: Any) -> NDArray[Any]:
    """Returns an array, tensor or number as an array; it shares the memory of the former two."""
    array: NDArray[Any] = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    return array


def _require_same_array(found: NDArray[Any], expected: NDArray[Any], where: str) -> None:
    kinds = [f"{array.dtype}{list(array.shape)}" for array in (found, expected)]
    require(kinds[0] == kinds[1], f"{kinds[1]} as `{where}`", kinds[0])
    differs = found != expected
    if expected.dtype.kind in "fc":
        differs &= ~(np.isnan(found) & np.isnan(expected))
    if np.any(differs):
        first = tuple(int(axis[0]) for axis in np.nonzero(differs)) if expected.shape else ()
        at = f"{where}[{', '.join(map(str, first))}]" if first else where
        wanted = f"{expected[first]!r} as `{at}`"
        raise deviation(wanted, repr(found[first]))


def _described(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
