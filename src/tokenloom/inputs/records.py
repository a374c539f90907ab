"""The records of a block one by one, for those who look at each, and where something is unusual."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.errors import InputError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.blocks import HEAD_BYTES, Block, FileBlock, LineBlock, TableBlock
from tokenloom.optional import require

_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
    int: "a number",
    float: "a number",
}
_MOST_DEPTH = 900  # a hundred less than Python's own readers take
_MOST_VALUES = 1 << 20
_BYTES_PER_VALUE = 16
"""A record may have a million values, or one for so many of its bytes: each takes up to 250 bytes as an object."""
_SIGNS = b'[]{},:"'
_NO_SIGNS = bytes(set(range(256)) - set(_SIGNS))
_STEPS = np.array([(chr(byte) in "[{") - (chr(byte) in "]}") for byte in range(256)], dtype=np.int8)
_SHOWN_ELEMENTS = 8  # of a list that is too long
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A record that holds no document.

    Attributes:
        path: of its file.
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
        block: of any format.
        loads: reads JSON; None for that of `orjson`.
    """
    if block.too_long:
        data = _beginning(block.batches[0]) if isinstance(block, TableBlock) else block.data
        yield NumberedRecord(block.first_record, too_long(block.max_record_bytes), data)
    elif isinstance(block, TableBlock):
        yield from _rows(block)
    elif isinstance(block, FileBlock):
        is_blank = not block.data.strip()
        value = None if is_blank else _text_of_file(block.data)
        yield NumberedRecord(block.first_record, value, block.data, is_blank=is_blank)
    else:
        yield from _lines(block, loads)


def _lines(block: LineBlock, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
    if block.format == "jsonl" and loads is None:
        loads = require("orjson", extra="preprocess").loads
    for number, line in enumerate(lines_of(block), block.first_record):
        value: Any = None
        if line.strip():
            try:
                value = parse_record(line, loads) if block.format == "jsonl" else {TEXT_KEY: _decoded(line)}
            except UnusableLineError as error:
                value = error
        yield NumberedRecord(number, value, line, is_blank=not line.strip())


def lines_of(block: LineBlock) -> list[bytes]:
    """Returns the lines of a block without their newlines."""
    lines = block.data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _text_of_file(data: bytes) -> Any:
    if data.startswith(_UTF16_MARKS):
        return UnusableLineError("expected UTF-8, found the byte order mark of UTF-16")
    try:
        return {TEXT_KEY: _decoded(data.removeprefix(_UTF8_MARK))}
    except UnusableLineError as error:
        return error


def _rows(block: TableBlock) -> Iterator[NumberedRecord]:
    number = block.first_record
    for batch in block.batches:
        try:
            rows: list[Any] = batch.to_pylist()
        except (ValueError, OverflowError):  # a value that Python cannot hold; most often text that is not UTF-8
            rows = [_row(batch, at) for at in range(len(batch))]
        for row in rows:
            yield NumberedRecord(number, row)
            number += 1


def _beginning(row: Any) -> bytes:
    """Returns the first bytes of a record batch of one row as JSON; no more of its texts is looked at."""
    values = {name: _head(column[0]) for name, column in zip(row.schema.names, row.columns, strict=True)}
    return json.dumps(values, ensure_ascii=False, default=repr).encode("utf-8", "replace")[:HEAD_BYTES]


def _head(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "as_buffer"):
        return bytes(memoryview(scalar.as_buffer())[:HEAD_BYTES]).decode("utf-8", "replace")
    if hasattr(scalar, "values") and hasattr(scalar.values, "slice"):  # of a list
        return [_head(value) for value in scalar.values.slice(0, _SHOWN_ELEMENTS)]
    if hasattr(scalar, "items"):  # a struct
        return {name: _head(value) for name, value in scalar.items()}
    value = getattr(scalar, "value", None)  # of a dictionary or an extension
    return _head(value) if hasattr(value, "is_valid") else scalar.as_py()


def _row(batch: Any, at: int) -> Any:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return UnusableLineError(_not_utf8(error))
    except (ValueError, OverflowError) as error:
        return UnusableLineError(f"a value that cannot be read: {error}")


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


def parse_record(line: bytes, loads: Any) -> Any:
    """Returns the value of a line of JSON.

    Args:
        line: its bytes.
        loads: of `orjson`; what it refuses and the standard library accepts is read by the latter.

    Raises:
        UnusableLineError: it is not JSON, or too deep or with too many values to be read.
    """
    check_shape(line)
    try:
        return loads(line)
    except (ValueError, RecursionError):
        pass  # orjson refuses lone surrogates, NaN and byte order marks, which the standard library accepts
    try:
        return json.loads(line.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise UnusableLineError(_not_utf8(error)) from error
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.colno}"
        raise UnusableLineError(reason) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand levels of nesting
        reason = f"not JSON that can be read: {error}"
        raise UnusableLineError(reason) from error


def check_shape(line: bytes) -> None:
    """Refuses a line of JSON whose values take far more memory than its bytes, or too much of the stack.

    Costs nothing for lines without many brackets, commas and colons, which texts may hold too: only what is not within
    strings counts.

    Raises:
        UnusableLineError: it is one.
    """
    most = max(_MOST_VALUES, len(line) // _BYTES_PER_VALUE)
    num_openings = line.count(b"[") + line.count(b"{")
    if num_openings <= _MOST_DEPTH and (len(line) <= most or line.count(b",") + line.count(b":") <= most):
        return
    unescaped = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(unescaped.translate(None, delete=_NO_SIGNS), dtype=np.uint8)
    is_quote = signs == ord('"')
    is_outside = np.cumsum(is_quote, dtype=np.uint8) & 1 == 0  # the number of quotes before, modulo 256
    signs = signs[is_outside & ~is_quote]
    if len(signs) > 2 * most:
        reason = f"not JSON that can be read: more than {most} values in {len(line)} bytes"
        raise UnusableLineError(reason)
    depths = np.cumsum(_STEPS[signs], dtype=np.int32)
    if len(depths) and int(depths.max()) > _MOST_DEPTH:
        reason = f"not JSON that can be read: more than {_MOST_DEPTH} levels"
        raise UnusableLineError(reason)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableLineError(_not_utf8(error)) from error


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"


def kind_of(value: Any) -> str:
    """Returns what a JSON value is, in words."""
    return _KINDS.get(type(value)) or f"a value of type {type(value).__name__}"
