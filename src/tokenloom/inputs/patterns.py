"""Globs over the addresses of objects, by the rules that `glob` has for files."""

from __future__ import annotations

import fnmatch
import re

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
    patterns = pattern.split("/")
    places = _reached({0}, patterns)  # how many segments of the pattern may be behind us
    for name in address.split("/"):
        places = _reached({at for place in places for at in _after(name, place, patterns)}, patterns)
    return len(patterns) in places


def _reached(places: set[int], patterns: list[str]) -> set[int]:
    """Returns places, and those that follow because `**` may be no segment at all."""
    for at, segment in enumerate(patterns):
        if at in places and segment == "**":
            places.add(at + 1)
    return places


def _after(name: str, place: int, patterns: list[str]) -> tuple[int, ...]:
    """Returns where a segment of an address leads from a place in the pattern."""
    if place == len(patterns) or (name.startswith(".") and not patterns[place].startswith(".")):  # hidden
        return ()
    if patterns[place] == "**":
        return (place,)
    return (place + 1,) if fnmatch.fnmatchcase(name, patterns[place]) else ()
