"""Computes the descriptions and keys of cached indices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError

_INDENT = "    "


def describe(identifiers: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the description of an index, and the key of the index: the MD5 of the description in hexadecimal.

    The description is the text of `json.dumps(identifiers, indent=4)`, with objects replaced by `unique_identifiers`.
    The reference uses the same text, so both can share a cache. `json.dumps` itself is too slow for 1,000 datasets.

    Raises:
        ConfigError: an object has no `unique_identifiers`.
    """
    text = _encode(identifiers, "\n")
    return text, hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _encode(value: Any, newline: str) -> str:
    if (encode := _SCALARS.get(type(value))) is not None:
        return encode(value)
    inner = newline + _INDENT
    if isinstance(value, dict):
        items = [f"{_name(name)}: {_encode(item, inner)}" for name, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{newline}}}" if items else "{}"
    if isinstance(value, (list, tuple)):
        items = [_encode(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{newline}]" if items else "[]"
    if isinstance(value, (str, int, float)):  # instances of subclasses
        return json.dumps(value)
    if isinstance(value, np.integer):
        return repr(int(value))
    try:
        identifiers = value.unique_identifiers
    except AttributeError as error:
        message = f"the tokenizer {type(value).__name__} has no `unique_identifiers`"
        raise ConfigError(message, hint="add this dict, which identifies the tokenizer in cache keys") from error
    return _encode(identifiers, newline)


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: json.encoder.encode_basestring_ascii,
    int: repr,
    float: lambda value: float.__repr__(value) if isfinite(value) else json.dumps(value),
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}


def _name(name: Any) -> str:
    """Returns a dict key as a JSON string; also converts numbers, None and booleans."""
    return json.encoder.encode_basestring_ascii(name if isinstance(name, str) else json.dumps(name))
