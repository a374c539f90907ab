"""What commands print for programs: one JSON object, whatever the values are that it is made of."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any


def print_json(value: Mapping[str, Any] | object) -> None:
    """Prints an object, or a dataclass as one, as a line of JSON; see `json_text`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Returns a value as JSON in one line of ASCII.

    Dataclasses become objects of their fields, members of enumerations their names, paths strings, NumPy's numbers and
    arrays numbers and lists, fractions numbers, dates text as in ISO 8601. What no JSON number can be (NaN and the
    infinities) becomes null.
    """
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:  # a number that is none: rare, so all else is written without looking for one
        return json.dumps(_finite(value), allow_nan=False)


def _plain(value: Any) -> Any:
    """Returns what `json` knows, or what is nearer to it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # NumPy's, which most commands have no need to import
        return value.tolist()
    message = f"expected something that JSON can tell, found {type(value).__name__}"
    raise TypeError(message)


def _finite(value: Any) -> Any:
    """Returns a value of what `json` knows, with null for numbers that it does not."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _finite(_plain(value))
