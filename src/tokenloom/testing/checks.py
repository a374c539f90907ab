"""Running checks one after the other, comparing samples to the last bit, and what it comes to."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn
from unittest import SkipTest

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
        lines = [f"{self.name}: {len(self.passed)} checks passed, {len(self.skipped)} skipped"]
        lines += [f"  passed   {sentence}" for sentence in self.passed]
        return "\n".join([*lines, *(f"  skipped  {sentence}: {reason}" for sentence, reason in self.skipped.items())])


def skip(reason: str) -> NoReturn:
    """Ends a check that does not apply."""
    raise SkipTest(reason)


def run_checks(name: str, checks: object) -> CheckReport:
    """Runs the checks of a class in their order, up to the first that fails, with a `ConformanceError`.

    A check is a public method, whose docstring says what holds if it raises nothing; one that does not apply calls
    `skip`.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for each, method in vars(type(checks)).items():
        if each.startswith("_") or not isinstance(method, FunctionType):
            continue
        sentence = method.__doc__ or each
        try:
            method(checks)
            passed.append(sentence)
        except SkipTest as reason:
            skipped[sentence] = str(reason)
        except ConformanceError as error:
            message = f"{name} fails the check that {sentence}: {error.message}"
            raise ConformanceError(message, hint=error.hint) from error.__cause__
        except Exception as error:
            error.add_note(f"while it was checked of {name} that {sentence}")
            raise
    return CheckReport(name=name, passed=tuple(passed), skipped=skipped)


def pickled_copy(value: Any) -> Any:
    """Returns what worker processes that are no forks would have of an object."""
    try:
        text = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        skip(f"it cannot be pickled, so worker processes must be forks: {error}")
    return pickle.loads(text)


def deviation(expected: object, found: object, *, hint: str | None = None) -> ConformanceError:
    """Returns the error for what is not as it must be, both in words."""
    message = f"expected {expected}, found {found}"
    return ConformanceError(message, hint=hint)


def require(condition: Any, expected: object, found: object) -> None:
    """Raises unless something holds."""
    if not condition:
        raise deviation(expected, found)


def require_same(found: Any, expected: Any, *, where: str) -> None:
    """Raises unless two values are the same: names and their order, lengths, dtypes, shapes and every number.

    Values are mappings, sequences, arrays, tensors or numbers, one within the other; tensors count as arrays, Python
    numbers as arrays of them. `where` is what was asked for, as code; the message says where they differ first.
    """
    if isinstance(expected, Mapping):
        names = list(found) if isinstance(found, Mapping) else type(found).__name__
        require(names == list(expected), f"{list(expected)} in `{where}`", names)
        for name in expected:
            require_same(found[name], expected[name], where=f"{where}[{name!r}]")
    elif isinstance(expected, (tuple, list)):
        described = f"{len(found)} values" if isinstance(found, (tuple, list)) else type(found).__name__
        require(described == f"{len(expected)} values", f"{len(expected)} values in `{where}`", described)
        for number, value in enumerate(expected):
            require_same(found[number], value, where=f"{where}[{number}]")
    else:
        _require_same_array(as_array(found), as_array(expected), where)


def columns_of(spans: Any, *more: str) -> dict[str, Any]:
    """Returns the columns of spans, or of a batch of them, by name."""
    return {name: getattr(spans, name) for name in ("documents", "starts", "lengths", *more)}


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
