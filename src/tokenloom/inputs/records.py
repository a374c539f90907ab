"""Parses blocks of records into texts, and gives a reason for each bad record.

Readers yield unparsed blocks, which worker threads parse. Nearly all blocks contain only good records with one text per
key; the format extracts all texts of such a block at once. Other blocks are parsed record by record.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.inputs import RECORD_BYTES

HEAD_BYTES = 1 << 10
"""Number of bytes to report from the start of a record that is too long."""

SkippedRecords = NDArray[np.int64]
"""int64[num_skipped]: the indices (from 0, ascending) of the records that have no document."""

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

MARK_BYTES = len(_UTF8_MARK)
"""Maximum length of a byte order mark, in bytes."""

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
    """A block of consecutive records of a file, not parsed yet; see `parse_block` and `records_of`.

    Attributes:
        unit: noun for a record: `line`, `row` or `file`.
        path: path of the file.
        first_record: number of the first record, from 1; counted from the start of the file or of the slice, see
            `InputSlice.numbers_records_from_its_start`.
        max_record_bytes: maximum record size in bytes; longer records are bad.
        too_long: whether the block is only the start of a record that is too long.
        data: bytes of the block; empty for a table.
    """

    unit: ClassVar[str]

    path: str
    first_record: int = 1
    max_record_bytes: int = RECORD_BYTES
    too_long: bool = False
    data: bytes = b""

    @property
    def num_text_bytes(self) -> int:
        """Size of the text in bytes; for a table, size of the columns in memory."""
        return len(self.data)

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Extracts the texts of all records at once; returns None if a record needs `parse_carefully`."""
        return None

    @abstractmethod
    def records(self) -> Iterator[NumberedRecord]:
        """Yields the parsed records; the block must not be `too_long`. `records_of` takes any block."""

    def halves(self) -> tuple[Self, Self] | None:
        """Splits the block into two halves; returns None if the block has only one record."""
        return None


def documents_between(skipped: SkippedRecords, start: int, stop: int) -> NDArray[np.int64]:
    """Cuts the records [start, stop) at `skipped` records into ranges, int64[num_ranges, 2]: (first record, length).

    Example:
        >>> documents_between(np.array([1, 2, 5]), 0, 8).tolist()
        [[0, 1], [3, 2], [6, 2]]
    """
    inside = skipped[slice(*np.searchsorted(skipped, [start, stop]))]
    starts, stops = np.append(start, inside + 1), np.append(inside, stop)
    runs = np.stack([starts, stops - starts], axis=1).astype(np.int64)
    kept: NDArray[np.int64] = runs[runs[:, 1] > 0]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts of several documents for one key.

    Attributes:
        texts: texts of all documents, without lone surrogates; several per document if they are sentences.
        document_ends: int64[num_documents], the index of the first text after each document; None if each document has
            one text.
    """

    texts: Sequence[str]
    document_ends: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """The number of good records in a sequence of records, the bad records, and indices of bad and blank records."""

    num_documents: int  # one per good record
    bad_lines: list[BadLine] = field(default_factory=list)
    skipped: SkippedRecords = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # blank and bad records

    @property
    def num_records(self) -> int:
        """Number of all records, including blank and bad records."""
        return self.num_documents + len(self.skipped)

    @property
    def num_blank_lines(self) -> int:
        """Number of lines that contain only white space."""
        return len(self.skipped) - len(self.bad_lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBlock(RecordCounts):
    """The documents of a block: `columns` has one `Texts` per key, all with the same number of documents."""

    columns: tuple[Texts, ...]


def parse_block(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Extracts the texts of each key from a block, and lists blank and bad records; see `value_at`. Thread-safe.

    Plain text (lines or whole files) has the key `text`. Of this text, only the newline of a line and the byte order
    mark of a file are dropped; a carriage return before the newline stays.
    """
    parsed = block.texts(keys)
    return parse_carefully(block, keys) if parsed is None else parsed


def parse_carefully(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Parses a block record by record; the returned `Texts` always have `document_ends`."""
    longest = block.max_record_bytes
    columns: list[list[str]] = [[] for _ in keys]
    ends: list[list[int]] = [[] for _ in keys]
    bad_lines: list[BadLine] = []
    skipped: list[int] = []
    for number, record in enumerate(records_of(block)):
        if record.is_blank:
            skipped.append(number)
            continue
        try:
            values = _values(record.value, keys)
            # The length of a row is known only after parsing.
            if not record.data and sum(len(text.encode()) for value in values for text in value) > longest:
                raise too_long(longest)
        except UnusableLineError as error:
            bad_lines.append(bad_line(block, record, str(error)))
            skipped.append(number)
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
        skipped=np.array(skipped, dtype=np.int64),
    )


def _values(record: Any, keys: Sequence[str]) -> list[list[str]]:
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
    """A bad record: a record that is not blank and cannot become a document.

    Attributes:
        path: path of the file.
        unit: `line`, `row` or `file`.
        line: number of the record, counted from 1 like `Block.first_record`.
        reason: why the record is bad.
        data: bytes of the record (a line without newline, a row as JSON); only the start if the record is too long.
        error: exception class to raise if the job accepts no more bad records.
    """

    path: str
    line: int
    reason: str
    data: bytes
    unit: str = "line"
    error: type[InputError] = InputError

    @property
    def place(self) -> str:
        """The path and record number, for messages."""
        return f"`{self.path}`" if self.unit == "file" else f"`{self.path}` {self.unit} {self.line}"


class UnusableLineError(Exception):
    """A record is bad; the message is the reason."""


def refuse_record(reason: str) -> NoReturn:
    raise UnusableLineError(reason)


@dataclass(frozen=True, slots=True)
class NumberedRecord:
    """A parsed record with its number and bytes; `value` is an `UnusableLineError` if the record cannot be parsed."""

    number: int
    value: Any
    data: bytes = b""
    is_blank: bool = False


def records_of(block: Block) -> Iterator[NumberedRecord]:
    """Yields the records of a block; `value` is None if the record is blank, an `UnusableLineError` if unreadable."""
    if block.too_long:
        yield NumberedRecord(block.first_record, too_long(block.max_record_bytes), block.data)
    else:
        yield from block.records()


def bad_line(block: Block, record: NumberedRecord, reason: str) -> BadLine:
    """Returns the `BadLine` for a bad record; its `data` is only the start of the record if the record is too long."""
    data = data_of(record)
    if len(data) > block.max_record_bytes:
        data = data[:HEAD_BYTES]
    return BadLine(path=block.path, unit=block.unit, line=record.number, reason=reason, data=data)


def data_of(record: NumberedRecord) -> bytes:
    """Returns the bytes of a record: its `data`, or JSON for a readable row of a table."""
    if record.data or record.value is None or isinstance(record.value, Exception):
        return record.data
    return json.dumps(record.value, ensure_ascii=False, default=repr).encode("utf-8", "replace")


def too_long(max_record_bytes: int) -> UnusableLineError:
    """Returns the error for a record that exceeds `max_record_bytes`."""
    return UnusableLineError(f"longer than {max_record_bytes} bytes (`max_record_bytes`); only its start is shown")


def checked_text(text: str, where: str) -> str:
    """Returns `text`; raises `UnusableLineError` if `text` contains a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"lone surrogate U+{ord(text[error.start]):X} at character {error.start + 1}"
        raise UnusableLineError(f"{where} is not valid Unicode: {found}") from error
    return text


def kind_of(value: Any) -> str:
    """Returns the JSON type of a value as a noun with article, such as "an array"."""
    return _KINDS.get(type(value)) or f"a value of type {type(value).__name__}"


def value_at(record: Any, key: str) -> Any:
    """Returns the value under `key`. A dotted `key` is a path into nested objects, unless the record has that very key.

    Example:
        >>> value_at({"meta": {"text": "a"}}, "meta.text"), value_at({"meta.text": "b", "meta": {}}, "meta.text")
        ('a', 'b')

    Raises:
        LookupError: the record has no such key.
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
    """Raises `InputError` if a file starts with a UTF-16 byte order mark."""
    if head.startswith(_UTF16_MARKS):
        message = f"`{path}`: expected UTF-8, found the byte order mark of UTF-16"
        raise InputError(message, hint="convert the file: `iconv -f UTF-16 -t UTF-8`")


def without_mark(head: bytes) -> bytes:
    """Removes the UTF-8 byte order mark from the start of a file."""
    return head.removeprefix(_UTF8_MARK)


def decoded(data: bytes) -> str:
    """Decodes UTF-8; raises `UnusableLineError` for invalid bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableLineError(not_utf8(error)) from error


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the `reason` of a bad record that is not UTF-8."""
    return f"not UTF-8: value 0x{error.object[error.start]:02x} at byte {error.start + 1}"
