"""Where the keys and tables of a TOML file stand: `tomllib` gives the values of a file and forgets its lines.

Meant for text that `tomllib` has accepted, so it only has to find its way, not to refuse. In other text it goes as far
as it understands.
"""

from __future__ import annotations

import bisect
import re
from contextlib import suppress
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys from the top of a file to a value, and numbers, from 0, in arrays: ("stages", 0, "weights", "web")."""

MOST_DEPTH = 64
"""Parts of a path; a run has 4, or a few more where a setting of its samples is a table."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANKS = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a file.

    Attributes:
        number: from 1.
        text: without its end.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands, as [start, stop) in characters of the text.

    Attributes:
        path: what stands there.
        start: where its key, its `[`, or an element of an array begins.
        value: where the value of the key begins; `start` for others.
        stop: behind the value, or the `]`.
        is_header: whether it is a `[table]` or `[[table]]`.
    """

    path: KeyPath
    start: int
    value: int
    stop: int
    is_header: bool = False


class TomlPlaces:
    """The places of a text, in its order.

    Args:
        text: some TOML.

    Attributes:
        text: the same.
        places: of all headers, keys and elements of arrays; a table or array stands before what is in it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.places: list[Place] = []
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._sizes: dict[KeyPath, int] = {}  # of arrays of tables
        with suppress(_LostError, RecursionError):  # of text that is no TOML, what was understood
            self._scan()
        self._by_path: dict[KeyPath, Place] = {}
        for place in self.places:
            for end in range(1, len(place.path) + 1):  # `[a.b]` is the first to name `a`, unless `[a]` follows
                known = self._by_path.get(place.path[:end])
                if known is None or (end == len(place.path) and known.path != place.path):
                    self._by_path[place.path[:end]] = place

    def find(self, path: KeyPath) -> Place | None:
        """Returns where something stands; where it does not, what it would be in; None for the file."""
        for end in range(len(path), 0, -1):
            if (place := self._by_path.get(path[:end])) is not None:
                return place
        return None

    def line_at(self, offset: int) -> Line:
        """Returns the line that a character is in."""
        return self.line(bisect.bisect_right(self._starts, offset))

    def line(self, number: int) -> Line:
        """Returns a line by its number, from 1."""
        stops = [*self._starts[number : number + 1], len(self.text) + 1]
        return Line(number=number, text=self.text[self._starts[number - 1] : stops[0] - 1].rstrip("\r"))

    def start_of_line(self, offset: int) -> int:
        """Returns where the line begins that a character is in."""
        return self._starts[bisect.bisect_right(self._starts, offset) - 1]

    def end_of_line(self, offset: int) -> int:
        """Returns where the next line begins; the end of the text on its last line."""
        number = bisect.bisect_right(self._starts, offset)
        return self._starts[number] if number < len(self._starts) else len(self.text)

    @property
    def num_lines(self) -> int:
        """Lines of the text; an end of line at its very end begins none."""
        return len(self._starts) - (len(self._starts) > 1 and self._starts[-1] == len(self.text))

    def first_repeated(self) -> tuple[Place, Place] | None:
        """Returns the first key or table that stands twice: where it was first, and where again."""
        seen: dict[KeyPath, Place] = {}
        for place in self.places:
            if place.path in seen:
                return seen[place.path], place
            seen[place.path] = place
        return None

    def _scan(self) -> None:
        table: KeyPath = ()
        at = self._skip(0)
        while at < len(self.text):
            if self.text[at] == "[":
                at, table = self._header(at)
            else:
                at = self._pair(at, table)
            at = self._skip(at)

    def _skip(self, at: int, space: re.Pattern[str] = _SPACE) -> int:
        found = space.match(self.text, at)
        assert found is not None  # it matches nothing, too
        return found.end()

    def _header(self, start: int) -> tuple[int, KeyPath]:
        is_array = self.text.startswith("[[", start)
        at, keys = self._keys(start + 1 + is_array)
        closing = "]]" if is_array else "]"
        if not self.text.startswith(closing, at):
            raise _LostError
        path: KeyPath = ()
        for number, key in enumerate(keys, 1):
            path += (key,)
            if is_array and number == len(keys):
                self._sizes[path] = self._sizes.get(path, 0) + 1
            if (size := self._sizes.get(path)) is not None:
                path += (size - 1,)
        stop = at + len(closing)
        self.places.append(Place(path=path, start=start, value=start, stop=stop, is_header=True))
        return stop, path

    def _pair(self, start: int, table: KeyPath) -> int:
        at, keys = self._keys(start)
        if not self.text.startswith("=", at):
            raise _LostError
        return self._value(start, self._skip(at + 1, _BLANKS), (*table, *keys))

    def _keys(self, at: int) -> tuple[int, list[str]]:
        """Returns what is behind a key, and the parts between its dots."""
        keys = []
        while True:
            at = self._skip(at, _BLANKS)
            if (found := _BARE_KEY.match(self.text, at)) is not None:
                keys.append(found[0])
            elif (found := _STRINGS[2].match(self.text, at)) is not None:
                keys.append(_ESCAPE.sub(_unescaped, found[0][1:-1]))
            elif (found := _STRINGS[3].match(self.text, at)) is not None:
                keys.append(found[0][1:-1])
            else:
                raise _LostError
            if len(keys) > MOST_DEPTH:
                raise _LostError
            at = self._skip(found.end(), _BLANKS)
            if not self.text.startswith(".", at):
                return at, keys
            at += 1

    def _value(self, start: int, at: int, path: KeyPath) -> int:
        """Notes a value and what is in it; returns what is behind it."""
        if len(path) > MOST_DEPTH:
            raise _LostError
        number = len(self.places)
        self.places.append(Place(path=path, start=start, value=at, stop=at))  # until its end is known
        opening = self.text[at : at + 1]
        if opening in ("[", "{"):
            stop = self._inside(at + 1, "]" if opening == "[" else "}", path)
        else:
            found = next((found for each in _STRINGS if (found := each.match(self.text, at))), None)
            found = found or _SCALAR.match(self.text, at)
            if found is None:
                raise _LostError
            stop = at + len(found[0].rstrip())
        self.places[number] = Place(path=path, start=start, value=at, stop=stop)
        return stop

    def _inside(self, at: int, closing: str, path: KeyPath) -> int:
        number = 0
        while True:
            at = self._skip(at)
            if self.text.startswith(closing, at):
                return at + 1
            at = self._skip(self._value(at, at, (*path, number)) if closing == "]" else self._pair(at, path))
            number += 1
            if self.text.startswith(",", at):
                at += 1
            elif not self.text.startswith(closing, at):
                raise _LostError


class _LostError(Exception):
    """The text is no TOML here."""


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[3], found[3])
