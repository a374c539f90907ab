"""Globs over the addresses of objects, by the rules that `glob` has for files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Whether a name is a glob; addresses of the web have none, and a `?` of their own."""
    return _SPECIAL.search(name) is not None and not name.startswith(("http://", "https://"))


def literal_folder(pattern: str) -> str:
    """Returns the longest folder that all matches lie in, with a slash.

    Example:
        >>> literal_folder("s3://bucket/crawl/part-*/[0-9].jsonl")
        's3://bucket/crawl/'
    """
    special = _SPECIAL.search(pattern)
    assert special is not None
    return pattern[: pattern.rindex("/", 0, special.start()) + 1]


def matches(address: str, pattern: str) -> bool:
    """Whether an address matches a glob: `**` as a segment is any number of them, `*` is within one, hidden is hidden.

    Example:
        >>> matches("s3://bucket/a/b/c.jsonl", "s3://bucket/**/*.jsonl"), matches("s3://bucket/a/b", "s3://bucket/*")
        (True, False)
    """
    return _match(address.split("/"), pattern.split("/"))


def _match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    segment, *rest = patterns
    if segment == "**" and _match(names, rest):
        return True
    if not names or (names[0].startswith(".") and not segment.startswith(".")):  # hidden
        return False
    if segment == "**":
        return _match(names[1:], patterns)
    return fnmatch.fnmatchcase(names[0], segment) and _match(names[1:], rest)
