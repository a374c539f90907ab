"""What a chat template may cost: steps instead of seconds, so that no record is bad only because a machine is slow.

A template is a program from elsewhere, and may loop, recurse, or ask for a text of terabytes. Turns of loops, calls and
filters are steps, and so is every 4 KiB that is looked at or made. What an operation would make is worked out before it
is done, from the sizes of what it is given; what it did make is counted after.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError

_BYTES_PER_STEP = 1 << 12
_MADE_PER_RENDERED = 16
"""Bytes that one rendering may make in all, as a multiple of those that one value, or the text itself, may have."""
_MOST_INTEGER_BYTES = 1 << 10  # no conversation needs larger ones, and to multiply them takes for ever
_NODE_BYTES = 64  # of a small object in a container
_MOST_DIGITS = 1000


class LimitError(Exception):
    """A template does more than it may; no part of a template can catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What a chat template may do for one conversation.

    Attributes:
        max_rendered_bytes: most memory for the text, and for every value on the way to it.
        max_render_steps: turns of loops, calls, filters, and 4 KiB that are made or compared, for all its turns.
    """

    max_rendered_bytes: int = 64 << 20
    max_render_steps: int = 5_000_000

    def __post_init__(self) -> None:
        for name in ("max_rendered_bytes", "max_render_steps"):
            if (value := getattr(self, name)) < 1:
                message = f"expected {name} of at least 1, got {value!r}"
                raise ConfigError(message)


class Meter:
    """Counts what the template does for one conversation. Used by one thread."""

    __slots__ = ("_limits", "_made", "_steps", "most_bytes")

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self.most_bytes: int = limits.max_rendered_bytes
        self._steps = 0
        self._made = 0

    def begin(self) -> None:
        """Notes that what was made before is gone, but for the text."""
        self._made = 0

    def step(self, count: int = 1) -> None:
        """Notes steps."""
        self._steps += count
        if self._steps > self._limits.max_render_steps:
            message = f"it takes more than {self._limits.max_render_steps} steps (`max_render_steps`)"
            raise LimitError(message)

    def touch(self, num_bytes: int) -> None:
        """Notes that so many bytes are looked at."""
        if num_bytes >= _BYTES_PER_STEP:
            self.step(num_bytes // _BYTES_PER_STEP)

    def require(self, num_bytes: int) -> None:
        """Refuses what would take so many bytes."""
        if num_bytes > self.most_bytes:
            message = f"it makes a value of more than {self._limits.max_rendered_bytes} bytes (`max_rendered_bytes`)"
            raise LimitError(message)

    def made(self, value: Any) -> None:
        """Notes a value that was made."""
        num_bytes = sys.getsizeof(value, 0)
        self.require(num_bytes)
        self._made += num_bytes
        if self._made > _MADE_PER_RENDERED * self._limits.max_rendered_bytes:
            message = (
                f"it makes values of more than {_MADE_PER_RENDERED} times {self._limits.max_rendered_bytes} bytes "
                "in all (`max_rendered_bytes`)"
            )
            raise LimitError(message)
        self.touch(num_bytes)

    def added(self, texts: Sequence[str]) -> str:
        """Returns texts as one."""
        num_characters = sum(map(len, texts))
        self.require(num_characters)
        text = "".join(texts)
        if num_characters < _BYTES_PER_STEP and self._made < self.most_bytes:
            self._made += num_characters
        else:
            self.made(text)
        return text

    def weigh(self, value: Any) -> int:
        """Returns the bytes that a value would have if it were written out, containers in containers included."""
        if type(value) is str:
            self.touch(len(value))
            return len(value)
        nodes = total = 0
        waiting = [value]
        while waiting:
            item = waiting.pop()
            nodes += 1
            if isinstance(item, (str, bytes)):
                total += len(item)
            elif isinstance(item, Mapping):
                waiting += item.keys()
                waiting += item.values()
            elif isinstance(item, (list, tuple, set, frozenset)):
                waiting += item
            elif (inner := getattr(item, "_Namespace__attrs", None)) is not None:
                waiting.append(inner)
            if not nodes & 1023:
                self.require(_NODE_BYTES * (nodes + len(waiting)) + total)
                self.step(256)
        self.require(_NODE_BYTES * nodes + total)
        return _NODE_BYTES * nodes + total

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yields items that a filter is about to collect."""
        total = 0
        for item in items:
            self.step()
            total += _NODE_BYTES + (sys.getsizeof(item, 0) if isinstance(item, (str, bytes)) else 0)
            self.require(total)
            yield item


def foresee_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Refuses an operation of Jinja that would make too much."""
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * max(0, right)}.get(operator, 0)
        if bits > 8 * _MOST_INTEGER_BYTES:
            message = f"it makes an integer of more than {8 * _MOST_INTEGER_BYTES} bits"
            raise LimitError(message)
    elif operator == "*":
        for values, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(values, (str, bytes, list, tuple)):
                width = (1 if values.isascii() else _WIDTHS) if isinstance(values, (str, bytes)) else 8
                meter.require(width * len(values) * max(0, count))
    elif operator == "%" and isinstance(left, (str, bytes)):
        _foresee_format(meter, str(left), right if isinstance(right, tuple) else (right,), "%")
    elif operator == "+" and isinstance(left, (str, bytes, list, tuple)):
        meter.require(sys.getsizeof(left) + sys.getsizeof(right, 0))


def foresee_method(meter: Meter, owner: Any, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuses the call of a method of a built-in type that would make too much."""
    given = (*arguments, *named.values())
    widest = max((value for value in given if isinstance(value, int)), default=0)
    if isinstance(owner, int):
        meter.require(widest)
    if not isinstance(owner, (str, bytes)):
        return
    meter.touch(len(owner))
    estimate = _METHODS.get(name)
    if name in ("format", "format_map"):
        flat = [item for value in given for item in (value.values() if isinstance(value, Mapping) else [value])]
        _foresee_format(meter, str(owner), tuple(flat), "{")
    elif name == "join" and given:
        _foresee_join(meter, given[0], owner)
    elif estimate is not None:
        meter.require(_WIDTHS * estimate(owner, given, widest))


def foresee_filter(meter: Meter, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuses the use of a filter that would make too much; `arguments` begins with what is filtered."""
    subject, given = arguments[0], (*arguments[1:], *named.values())
    widest = max((abs(value) for value in given if isinstance(value, int)), default=0)
    text = subject if isinstance(subject, str) else ""
    if name == "format":
        _foresee_format(meter, str(subject), given, "%")
    elif name == "join":
        separator = named.get("d", arguments[1] if len(arguments) > 1 else "")
        _foresee_join(meter, subject, separator)
    elif name in ("batch", "center", "slice"):
        meter.require((_WIDTHS if name == "center" else _NODE_BYTES) * widest + len(text))
    elif name in ("indent", "wordwrap"):
        pad = max([widest if name == "indent" else 0, *(len(value) for value in given if isinstance(value, str))])
        width = max(1, widest) if name == "wordwrap" else len(text) + 1
        meter.require(_WIDTHS * (len(text) + (2 * (len(text) // width) + text.count("\n") + 2) * pad))
    elif name == "replace" and len(arguments) > 2:
        meter.require(_WIDTHS * _replaced(str(subject), arguments[1:], 0))
    elif name == "tojson":
        pad = max(
            [widest, *(len(part) for value in given if isinstance(value, (str, tuple)) for part in value)], default=0
        )
        meter.require(meter.weigh(subject) * (1 + pad))
    elif name == "round" and widest > _MOST_DIGITS:
        message = f"it rounds to more than {_MOST_DIGITS} digits"
        raise LimitError(message)
    elif name == "sum":
        meter.step(sum(len(item) for item in subject if isinstance(item, (list, tuple))) * len(subject) >> 9)
    elif name == "list":
        meter.require(_NODE_BYTES * len(text) if not text.isascii() else 8 * len(text))


_WIDTHS = 4  # bytes of a character at most
_SPEC = {"%": re.compile(r"%[^a-zA-Z%]*"), "{": re.compile(r"\{[^}]*")}
_NUMBER = re.compile(r"\d+")


def _replaced(text: Any, given: tuple[Any, ...], _: int) -> int:
    old: Any = given[0] if given else ""
    new: Any = given[1] if len(given) > 1 else ""
    if type(old) is not type(text) or type(new) is not type(text):
        return len(text)  # an error, or nothing to replace
    count: int = text.count(old)
    return len(text) + count * len(new)


def _expanded(text: Any, given: tuple[Any, ...], widest: int) -> int:
    count: int = text.count("\t" if isinstance(text, str) else b"\t")
    return len(text) + count * (widest if given else 8)


def _translated(text: Any, given: tuple[Any, ...], _: int) -> int:
    table = given[0] if given and isinstance(given[0], Mapping) else {}
    return len(text) * max((len(value) for value in table.values() if isinstance(value, str)), default=1)


def _pieces(text: Any, given: tuple[Any, ...], _: int) -> int:
    separator: Any = given[0] if given else None
    if separator:
        count: int = text.count(separator) if type(separator) is type(text) else 0
    else:
        count = sum(text.count(space if isinstance(text, str) else space.encode()) for space in (" ", "\n", "\t", "\r"))
    return len(text) + _NODE_BYTES // _WIDTHS * count


_METHODS: Mapping[str, Callable[[Any, tuple[Any, ...], int], int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), lambda text, _, widest: len(text) + widest),
    "replace": _replaced,
    "expandtabs": _expanded,
    "translate": _translated,
    **dict.fromkeys(("split", "rsplit", "splitlines"), _pieces),
}
"""Characters that a method of texts makes, from the text, what is given, and the largest number of that."""


def _foresee_join(meter: Meter, items: Any, separator: Any) -> None:
    if isinstance(items, Sized):
        meter.require(_WIDTHS * (meter.weigh(items) + len(items) * meter.weigh(separator)))


def _foresee_format(meter: Meter, pattern: str, given: tuple[Any, ...], sign: str) -> None:
    widths = [value for value in given if isinstance(value, int)]
    specs = _SPEC[sign].findall(pattern)
    nested = any("*" in spec if sign == "%" else "{" in spec[1:] for spec in specs)
    longest = max((meter.weigh(value) for value in given), default=0)
    for spec in specs:
        numbers = [int(digits[:19]) for digits in _NUMBER.findall(spec)]
        meter.require(_WIDTHS * max([*numbers, *(widths if nested else []), 0]))
        meter.step()
    wide = max(
        [0, *(int(digits[:19]) for spec in specs for digits in _NUMBER.findall(spec)), *(widths if nested else [])]
    )
    meter.require(_WIDTHS * (len(pattern) + len(specs) * (longest + wide)))
