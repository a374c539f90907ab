"""Runs conformance checks, compares samples bit for bit, and reports the results."""

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
    """The passed and skipped checks of one object; `str(report)` has a heading and one line per check.

    Attributes:
        name: class name of the checked object.
        passed: a description of each passed check.
        skipped: {description of a skipped check: reason}, for example because the object lacks an optional method.
    """

    name: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.passed)} checks passed, {len(self.skipped)} skipped"]
        lines += [f"  passed   {check}" for check in self.passed]
        return "\n".join([*lines, *(f"  skipped  {check}: {reason}" for check, reason in self.skipped.items())])


def skip(reason: str) -> NoReturn:
    """Skips the running check."""
    raise SkipTest(reason)


def run_checks(name: str, checks: object) -> CheckReport:
    """Runs all checks of an object: the public methods of `checks`. The docstring of a method describes the check.

    A failed check raises `ConformanceError`, and later checks do not run. A check that does not apply calls `skip`.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for method_name, method in vars(type(checks)).items():
        if method_name.startswith("_") or not isinstance(method, FunctionType):
            continue
        check = method.__doc__ or method_name
        try:
            method(checks)
            passed.append(check)
        except SkipTest as reason:
            skipped[check] = str(reason)
        except ConformanceError as error:
            message = f"{name} fails the check that {check}: {error.message}"
            raise ConformanceError(message, hint=error.hint) from error.__cause__
        except Exception as error:
            error.add_note(f"raised by the check of {name} that {check}")
            raise
    return CheckReport(name=name, passed=tuple(passed), skipped=skipped)


def pickled_copy(value: Any) -> Any:
    """Returns a copy of an object, made by pickling; skips the running check if the object cannot be pickled."""
    try:
        text = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        skip(f"the object cannot be pickled, so worker processes must be forked: {error}")
    return pickle.loads(text)


def deviation(expected: object, found: object, *, hint: str | None = None) -> ConformanceError:
    """Returns an error with the text "expected …, found …"."""
    return ConformanceError(f"expected {expected}, found {found}", hint=hint)


def require(condition: Any, expected: object, found: object) -> None:
    """Raises `deviation(expected, found)` if the condition is false."""
    if not condition:
        raise deviation(expected, found)


def require_same(found: Any, expected: Any, *, where: str) -> None:
    """Raises `ConformanceError` unless two values have equal contents, lengths, dtypes, shapes and order of names.

    A value is an array, tensor or number, or a mapping or sequence of values. A tensor equals an array with the same
    contents. The error message contains the first difference and `where`, the expression that returned `found`.
    """
    if isinstance(expected, Mapping):
        names = list(found) if isinstance(found, Mapping) else type(found).__name__
        require(names == list(expected), f"names {list(expected)} in `{where}`", names)
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
    """Returns the columns of spans, or of a batch of spans: `documents`, `starts`, `lengths` and those in `more`."""
    return {name: getattr(spans, name) for name in ("documents", "starts", "lengths", *more)}


def as_array(value: Any) -> NDArray[Any]:
    """Converts an array, tensor or number to an array, which shares the memory of the given array or tensor."""
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
        raise deviation(f"{expected[first]!r} as `{at}`", repr(found[first]))
