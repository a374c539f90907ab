"""Whether two samples are the same, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConformanceError


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
