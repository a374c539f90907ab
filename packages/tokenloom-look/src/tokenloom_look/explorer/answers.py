"""Answers as JSON that every browser reads exactly, and errors as answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenloom.errors import (
    ChangedFileError,
    ConfigError,
    DatasetNotFoundError,
    InputError,
    MissingObjectError,
    ReplacedObjectError,
    TokenloomError,
    UnavailableError,
)
from tokenloom.rendering.plain import printable
from tokenloom.storage.secrets import redacted

_LARGEST_EXACT = 2**53
"""JavaScript's numbers are exact up to it."""

_STATUSES: tuple[tuple[type[TokenloomError], int], ...] = (
    (ConfigError, 400),
    (InputError, 400),
    (DatasetNotFoundError, 404),
    (MissingObjectError, 404),
    (ChangedFileError, 409),
    (ReplacedObjectError, 409),
    (UnavailableError, 503),
)


class NotThereError(TokenloomError):
    """What was asked for by number or name is not there; the page says so in its place."""


def encoded(value: Any) -> bytes:
    """Returns a value as JSON: what is not finite as null, whole numbers that JavaScript would round as texts.

    Texts of strangers, such as names of files, are made printable on their way, so that they turn no page around.

    Example:
        >>> encoded({"position": 2**60, "loss": float("nan")})
        b'{"position":"1152921504606846976","loss":null}'
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="backslashreplace"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_LARGEST_EXACT <= value <= _LARGEST_EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        # What is HTML was made printable, and escaped, by who drew it.
        return {str(key): each if str(key).endswith("html") else _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value]


def error_answer(error: TokenloomError) -> tuple[int, dict[str, str | None]]:
    """Returns status and answer of an error, without secrets."""
    status = 404 if isinstance(error, NotThereError) else 500
    for kind, number in _STATUSES:
        if isinstance(error, kind):
            status = number
            break
    return status, {"error": redacted(error.message), "hint": None if error.hint is None else redacted(error.hint)}
