"""The names of texts in records: a key, or a path of keys such as `meta.text` to a value inside other objects."""

from __future__ import annotations

from typing import Any


def value_at(record: Any, key: str) -> Any:
    """Returns the value under a key; where there is none, the one that its first dot leads to.

    A key that holds the dot itself wins.

    Example:
        >>> value_at({"meta": {"text": "a"}}, "meta.text"), value_at({"meta.text": "b", "meta": {}}, "meta.text")
        ('a', 'b')

    Raises:
        LookupError: there is none.
    """
    while type(record) is dict:
        if key in record:
            return record[key]
        head, dot, rest = key.partition(".")
        if not dot or head not in record:
            break
        record, key = record[head], rest
    raise LookupError(key)
