"""Texts of lines, one character at a time."""

import json
import re
from collections.abc import Sequence

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE](?:\+?[0-9]{1,2}|-[0-9]{1,3}))?")
_WORD = re.compile("true|false|null")


class UnusualError(Exception):
    """The block is refused."""


Unusual = list[tuple[int, int, int]]
"""Lines that have no texts here: the texts before each, and its bytes [start, stop)."""


def json_texts(lines: bytes, keys: Sequence[str], most_unusual: int = 0) -> tuple[list[list[str]], Unusual] | None:
    """Returns the strings under each key of lines of JSON, and the lines with anything unusual; None if too many."""
    rows: list[dict[str, str]] = []
    unusual: Unusual = []
    start = 0
    for line in _split(lines):
        try:
            rows.append(_Line(line.decode()).texts(keys))
        except (UnusualError, UnicodeDecodeError):
            unusual.append((len(rows), start, start + len(line)))
        start += len(line) + 1
    return None if len(unusual) > most_unusual else ([[row[key] for row in rows] for key in keys], unusual)


def line_texts(lines: bytes) -> list[str] | None:
    """Returns lines of text; None if one is blank or not UTF-8."""
    try:
        texts = [line.decode() for line in _split(lines)]
    except UnicodeDecodeError:
        return None
    return None if any(not line.strip() for line in _split(lines)) else texts


def _split(lines: bytes) -> list[bytes]:
    return lines.removesuffix(b"\n").split(b"\n") if lines else []


class _Line:
    """Reads an object from the front of a line."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0

    def texts(self, keys: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        self._space()
        self._take("{")
        while True:
            raw = self._key()
            if "\\" in raw:
                raise UnusualError
            if raw in keys:
                if raw in found:
                    raise UnusualError
                found[raw] = self._string()
            else:
                self._value(depth=2)
            self._space()
            if not self._took(","):
                break
        self._take("}")
        self._space()
        if self._at != len(self._line) or len(found) != len(keys):
            raise UnusualError
        return found

    def _value(self, *, depth: int) -> None:
        first = self._line[self._at : self._at + 1]
        if first == '"':
            self._string()
        elif first in ("{", "["):
            if depth > MAX_DEPTH:
                raise UnusualError
            self._container(first, depth=depth)
        elif not self._skipped(_WORD):
            start = self._at
            if not self._skipped(_NUMBER) or self._at - start > 64:
                raise UnusualError

    def _container(self, first: str, *, depth: int) -> None:
        last = {"{": "}", "[": "]"}[first]
        self._take(first)
        self._space()
        if self._took(last):
            return
        while True:
            if first == "{":
                self._key()
            self._space()
            self._value(depth=depth + 1)
            self._space()
            if not self._took(","):
                break
        self._take(last)

    def _key(self) -> str:
        """Returns a key as it is written."""
        self._space()
        start = self._at
        self._string()
        raw = self._line[start + 1 : self._at - 1]
        self._space()
        self._take(":")
        self._space()
        return raw

    def _string(self) -> str:
        match = _STRING.match(self._line, self._at)
        if match is None:
            raise UnusualError
        self._at = match.end()
        text: str = json.loads(match[0])
        if any("\ud800" <= letter < "\ue000" for letter in text):
            raise UnusualError
        return text

    def _space(self) -> None:
        self._skipped(_SPACE)

    def _skipped(self, expression: re.Pattern[str]) -> bool:
        match = expression.match(self._line, self._at)
        self._at = match.end() if match else self._at
        return match is not None

    def _took(self, letter: str) -> bool:
        taken = self._line.startswith(letter, self._at)
        self._at += taken
        return taken

    def _take(self, letter: str) -> None:
        if not self._took(letter):
            raise UnusualError
