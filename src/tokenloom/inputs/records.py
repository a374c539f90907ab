"""The records of a block one by one, for those who look at each, and where something is unusual.

With what a record is made of: bytes that are UTF-8 or not, and values under keys or paths of keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs.blocks import HEAD_BYTES, Block

MARK = "\ufeff"
"""Marks of byte order, as text."""

_UTF8_MARK = MARK.encode()
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

MARK_BYTES = len(_UTF8_MARK)
"""Most bytes of a byte order mark."""

NOT_UTF16 = "expected UTF-8, found the byte order mark of UTF-16"

_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
    int: "a number",
    float: "a number",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A record that holds no document.

    Attributes:
        path: path of its file.
        unit: what a record is there: `line`, `row` or `file`.
        line: its number from 1, as `Block.first_record` counts.
        reason: why it holds none.
        data: its bytes without the newline, or as JSON; of one that is too long, the beginning.
        error: what is raised where bad records are not set aside.
    """

    path: str
    line: int
    reason: str
    data: bytes
    unit: str = "line"
    error: type[InputError] = InputError

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"`{self.path}`" if self.unit == "file" else f"`{self.path}` {self.unit} {self.line}"


class UnusableLineError(Exception):
    """A record holds no document; carries the reason."""


@dataclass(frozen=True, slots=True)
class NumberedRecord:
    """A record, its number, and its bytes; `value` is an error where the bytes are none that can be read."""

    number: int
    value: Any
    data: bytes = b""
    is_blank: bool = False


def records_of(block: Block, *, loads: Callable[[bytes], Any] | None = None) -> Iterator[NumberedRecord]:
    """Yields the records of a block, those that cannot be read as an `UnusableLineError` with the reason.

    A row, and text without keys, come as an object; a blank record as None.

    Args:
        block: a block of any format.
        loads: reads JSON; None for that of `orjson`.
    """
    if block.too_long:
        yield NumberedRecord(block.first_record, too_long(block.max_record_bytes), block.beginning())
    else:
        yield from block.records(loads)


def bad_line(block: Block, record: NumberedRecord, reason: str) -> BadLine:
    """Returns what is set aside of a record."""
    data = data_of(record)
    if len(data) > block.max_record_bytes:
        data = data[:HEAD_BYTES]
    return BadLine(path=block.path, unit=block.unit, line=record.number, reason=reason, data=data)


def data_of(record: NumberedRecord) -> bytes:
    """Returns the bytes of a record, those of a row as JSON; none of a row that cannot be read."""
    if record.data or record.value is None or isinstance(record.value, Exception):
        return record.data
    return json.dumps(record.value, ensure_ascii=False, default=repr).encode("utf-8", "replace")


def too_long(max_record_bytes: int) -> UnusableLineError:
    """Returns the error for a record with more bytes."""
    return UnusableLineError(
        f"longer than {max_record_bytes} bytes, which `max_record_bytes` allows; only its beginning is kept"
    )


def checked_text(text: str, where: str) -> str:
    """Returns a text that UTF-8 can hold.

    Raises:
        UnusableLineError: it has a lone surrogate, as a pair of escapes that was cut in two.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"lone surrogate U+{ord(text[error.start]):X} at character {error.start + 1}"
        reason = f"{where} is no Unicode text: {found}"
        raise UnusableLineError(reason) from error
    return text


def kind_of(value: Any) -> str:
    """Returns what a JSON value is, in words."""
    return _KINDS.get(type(value)) or f"a value of type {type(value).__name__}"


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


def begins_as_utf16(head: bytes) -> bool:
    """Whether a file that begins so is text in UTF-16, which is not read."""
    return head.startswith(_UTF16_MARKS)


def without_mark(head: bytes) -> bytes:
    """Returns the beginning of a file of UTF-8 without the byte order mark."""
    return head.removeprefix(_UTF8_MARK)


def decoded(data: bytes) -> str:
    """Returns text in UTF-8.

    Raises:
        UnusableLineError: it is something else.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableLineError(not_utf8(error)) from error


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the reason why bytes are no text."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
