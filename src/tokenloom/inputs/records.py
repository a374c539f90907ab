"""Blocks of records, the texts in them, and a reason for every record without texts.

Readers yield blocks unparsed. Nearly all blocks hold only good records with one text under each key, which their
formats take out at once. Any other block is parsed record by record, in worker threads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.inputs import RECORD_BYTES

HEAD_BYTES = 1 << 10
"""Kept of a record that is too long."""

LeftOut = NDArray[np.int64]
"""int64[num_left_out], rising: numbers of records, from 0, that gave no document."""

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

MARK_BYTES = len(_UTF8_MARK)
"""Most bytes of a byte order mark."""

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
class Block(ABC):
    """Consecutive records of a file; see `parse_block` and `records_of`.

    Attributes:
        unit: a record: `line`, `row` or `file`.
        path: path of the file.
        first_record: number of the first record, from 1: see `InputSlice.numbers_records_from_its_start`.
        max_record_bytes: longer records are bad.
        too_long: whether the block is the beginning of a longer record; the rest was dropped.
        data: its bytes, if it is text.
    """

    unit: ClassVar[str]

    path: str
    first_record: int = 1
    max_record_bytes: int = RECORD_BYTES
    too_long: bool = False
    data: bytes = b""

    @property
    def num_text_bytes(self) -> int:
        """Size of the text; of a table, of its columns in memory."""
        return len(self.data)

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the texts of all records at once; None if anything is unusual."""
        return None

    @abstractmethod
    def records(self) -> Iterator[NumberedRecord]:
        """Yields the records of a block that is not too long; see `records_of`."""

    def halves(self) -> tuple[Self, Self] | None:
        """Returns the first and the second half of the records; None for a single record."""
        return None


def left_out_of(numbers: Sequence[int] | NDArray[np.int64]) -> LeftOut:
    """Returns the numbers of records, from 0 and rising, as an array."""
    return np.array(numbers, dtype=np.int64)


def documents_between(left_out: LeftOut, start: int, stop: int) -> NDArray[np.int64]:
    """Returns the records [start, stop) that gave documents: int64[num_runs, 2], first record and count of each run.

    Example:
        >>> documents_between(np.array([1, 2, 5]), 0, 8).tolist()
        [[0, 1], [3, 2], [6, 2]]
    """
    inside = left_out[slice(*np.searchsorted(left_out, [start, stop]))]
    starts, stops = np.append(start, inside + 1), np.append(inside, stop)
    runs = np.stack([starts, stops - starts], axis=1).astype(np.int64)
    kept: NDArray[np.int64] = runs[runs[:, 1] > 0]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts under one key.

    Attributes:
        texts: one per document, or one per sentence; without lone surrogates.
        document_ends: int64[num_documents], the number of texts before each document's end; None if each text is one.
    """

    texts: Sequence[str]
    document_ends: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDone:
    """Counts of consecutive records.

    Attributes:
        num_documents: documents, one per good record.
        bad_lines: records without a document that are not blank.
        left_out: numbers of the blank and the bad records.
    """

    num_documents: int
    bad_lines: list[BadLine] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=partial(left_out_of, ()))

    @property
    def num_records(self) -> int:
        """All records, blank and bad ones included."""
        return self.num_documents + len(self.left_out)

    @property
    def num_blank_lines(self) -> int:
        """Lines of white space."""
        return len(self.left_out) - len(self.bad_lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBlock(RecordsDone):
    """The documents of a block: one `Texts` per key in `columns`, all with the same number of documents."""

    columns: tuple[Texts, ...]


def parse_block(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block, and lists records without them. Thread-safe.

    Text without keys, in lines or whole files, is unchanged but for the newline that ends a line (a carriage return
    before it stays) and the byte order mark at the beginning of a file.

    Args:
        block: a block of any format.
        keys: keys of the texts, see `value_at`; `text` for text without keys.
    """
    parsed = block.texts(keys)
    return parse_carefully(block, keys) if parsed is None else parsed


def parse_carefully(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block, record by record, with the end of each document."""
    longest = block.max_record_bytes
    columns: list[list[str]] = [[] for _ in keys]
    ends: list[list[int]] = [[] for _ in keys]
    bad_lines: list[BadLine] = []
    left_out: list[int] = []
    for number, record in enumerate(records_of(block)):
        if record.is_blank:
            left_out.append(number)
            continue
        try:
            values = _values(record.value, keys)
            # The length of a row is not known before it is read.
            if not record.data and sum(len(text.encode()) for value in values for text in value) > longest:
                raise too_long(longest)
        except UnusableLineError as error:
            bad_lines.append(bad_line(block, record, str(error)))
            left_out.append(number)
            continue
        for value, column, column_ends in zip(values, columns, ends, strict=True):
            column.extend(value)
            column_ends.append(len(column))
    return ParsedBlock(
        columns=tuple(
            Texts(texts=texts, document_ends=np.array(column_ends, dtype=np.int64))
            for texts, column_ends in zip(columns, ends, strict=True)
        ),
        num_documents=len(ends[0]),
        bad_lines=bad_lines,
        left_out=left_out_of(left_out),
    )


def _values(record: Any, keys: Sequence[str]) -> list[list[str]]:
    """Returns the texts of one document under each key."""
    if isinstance(record, UnusableLineError):
        raise record
    if type(record) is not dict:
        refuse_record(f"expected a JSON object, found {kind_of(record)}")
    values: list[list[str]] = []
    for key in keys:
        try:
            value = value_at(record, key)
        except LookupError as error:
            found = ", ".join(repr(name) for name in list(record)[:8]) or "none"
            raise UnusableLineError(f"no key {key!r}; found {found}") from error
        texts = value if type(value) is list else [value]
        for text in texts:
            if type(text) is not str:
                place = f"an array with {kind_of(text)}" if type(value) is list else kind_of(text)
                refuse_record(f"expected a string or an array of strings under {key!r}, found {place}")
        values.append([checked_text(text, repr(key)) for text in texts])
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A record without a document.

    Attributes:
        path: path of its file.
        unit: `line`, `row` or `file`.
        line: its number from 1, as `Block.first_record` counts.
        reason: why it has none.
        data: its bytes without the newline, or as JSON; only the beginning if it is too long.
        error: class to raise where bad records are not set aside.
    """

    path: str
    line: int
    reason: str
    data: bytes
    unit: str = "line"
    error: type[InputError] = InputError

    @property
    def place(self) -> str:
        """Its place in words."""
        return f"`{self.path}`" if self.unit == "file" else f"`{self.path}` {self.unit} {self.line}"


class UnusableLineError(Exception):
    """A record has no document; carries the reason."""


def refuse_record(reason: str) -> NoReturn:
    """Raises an `UnusableLineError`."""
    raise UnusableLineError(reason)


@dataclass(frozen=True, slots=True)
class NumberedRecord:
    """A record, its number, and its bytes; `value` is an error if the bytes cannot be read."""

    number: int
    value: Any
    data: bytes = b""
    is_blank: bool = False


def records_of(block: Block) -> Iterator[NumberedRecord]:
    """Yields the records of a block: objects, None for a blank one, an `UnusableLineError` for an unreadable one."""
    if block.too_long:
        yield NumberedRecord(block.first_record, too_long(block.max_record_bytes), block.data)
    else:
        yield from block.records()


def bad_line(block: Block, record: NumberedRecord, reason: str) -> BadLine:
    """Returns a record to set aside, with its bytes or their beginning."""
    data = data_of(record)
    if len(data) > block.max_record_bytes:
        data = data[:HEAD_BYTES]
    return BadLine(path=block.path, unit=block.unit, line=record.number, reason=reason, data=data)


def data_of(record: NumberedRecord) -> bytes:
    """Returns the bytes of a record, of a row as JSON; none of an unreadable row."""
    if record.data or record.value is None or isinstance(record.value, Exception):
        return record.data
    return json.dumps(record.value, ensure_ascii=False, default=repr).encode("utf-8", "replace")


def too_long(max_record_bytes: int) -> UnusableLineError:
    """Returns the error for a record with more bytes."""
    limit = f"{max_record_bytes} bytes, which `max_record_bytes` allows"
    return UnusableLineError(f"longer than {limit}; only its beginning is kept")


def checked_text(text: str, where: str) -> str:
    """Returns a text; raises an `UnusableLineError` for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"lone surrogate U+{ord(text[error.start]):X} at character {error.start + 1}"
        raise UnusableLineError(f"{where} is no Unicode text: {found}") from error
    return text


def kind_of(value: Any) -> str:
    """Returns the type of a JSON value in words."""
    return _KINDS.get(type(value)) or f"a value of type {type(value).__name__}"


def value_at(record: Any, key: str) -> Any:
    """Returns the value under a key, or under the path that its dots spell; a key with the dot itself wins.

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


def refuse_utf16(path: str, head: bytes) -> None:
    """Refuses a file that begins as text in UTF-16 does."""
    if head.startswith(_UTF16_MARKS):
        message = f"`{path}`: expected UTF-8, found the byte order mark of UTF-16"
        raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")


def without_mark(head: bytes) -> bytes:
    """Returns the beginning of a file of UTF-8 without the byte order mark."""
    return head.removeprefix(_UTF8_MARK)


def decoded(data: bytes) -> str:
    """Returns text from UTF-8; raises an `UnusableLineError` for other bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableLineError(not_utf8(error)) from error


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the reason why bytes are no text."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
