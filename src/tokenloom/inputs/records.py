"""Blocks of records, and the texts that are taken out of them, with a reason for every record that holds none.

Readers yield blocks, which are not looked into yet. Nearly all blocks hold nothing but good records with one text under
each key, which their formats take out at once. Any other block is parsed record by record, in worker threads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, InputError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.limits import RECORD_BYTES

HEAD_BYTES = 1 << 10
"""Kept of a record that is too long."""

LeftOut = NDArray[np.int64]
"""int64[num_runs, 2], rising: the number of the first record of a run, from 0, and how many records the run has."""

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
    """Some consecutive records of a file. Parsed by `parse_block`, looked at one by one by `records_of`.

    Attributes:
        unit: what a record is: `line`, `row` or `file`.
        path: path of the file.
        first_record: number of the first record, from 1: see `InputSlice.numbers_records_from_its_start`.
        max_record_bytes: longer records are bad ones.
        too_long: whether the block is the beginning of one of these, the rest of which was dropped.
        data: its bytes, where it is text.
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
        """Returns the texts of all records, without looking at each; None if anything is unusual.

        Raises:
            ConfigError: no record of the format can have such keys.
        """
        return None

    @abstractmethod
    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the records of a block that is not too long; see `records_of`."""

    def halves(self) -> tuple[Self, Self] | None:
        """Returns the first and the last of the records; None if there is one record only."""
        return None


def none_left_out() -> LeftOut:
    """Returns that all records gave a document."""
    return np.empty((0, 2), dtype=np.int64)


def left_out_of(numbers: Sequence[int] | NDArray[np.int64]) -> LeftOut:
    """Returns runs of records.

    Args:
        numbers: their numbers from 0, rising.

    Example:
        >>> left_out_of([0, 1, 5]).tolist()
        [[0, 2], [5, 1]]
    """
    each = np.array(numbers, dtype=np.int64)
    return _merged(np.stack([each, np.ones_like(each)], axis=1))


def num_left_out(left_out: LeftOut) -> int:
    """Returns how many records gave no document."""
    return int(left_out[:, 1].sum())


def joined_left_out(parts: Iterable[tuple[LeftOut, int]]) -> LeftOut:
    """Returns what was left out of parts that follow each other.

    Args:
        parts: what was left out of each, and how many records it has.
    """
    shifted = [none_left_out()]
    num_before = 0
    for left_out, num_records in parts:
        if len(left_out):
            shifted.append(left_out + np.array([num_before, 0], dtype=np.int64))
        num_before += num_records
    return _merged(np.concatenate(shifted))


def documents_between(left_out: LeftOut, start: int, stop: int) -> NDArray[np.int64]:
    """Returns the records [start, stop) that gave documents: int64[num_runs, 2], first record and count of each run.

    Example:
        >>> documents_between(np.array([[1, 2], [5, 1]]), 0, 8).tolist()
        [[0, 1], [3, 2], [6, 2]]
    """
    stops = left_out.sum(axis=1)
    first, last = np.searchsorted(stops, start, side="right"), np.searchsorted(left_out[:, 0], stop)
    starts = np.concatenate([[start], stops[first:last]])
    ends = np.concatenate([left_out[first:last, 0], [stop]])
    runs = np.stack([starts, ends - starts], axis=1).astype(np.int64)
    kept: NDArray[np.int64] = runs[runs[:, 1] > 0]
    return kept


def _merged(runs: LeftOut) -> LeftOut:
    """Returns the same runs, those that touch as one."""
    if len(runs) < 2:
        return runs
    stops = runs.sum(axis=1)
    is_first = np.concatenate([[True], runs[1:, 0] != stops[:-1]])
    firsts = runs[is_first, 0]
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([firsts, stops[is_last] - firsts], axis=1)


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
    """What became of some consecutive records.

    Attributes:
        num_documents: number of documents, of a record each.
        bad_lines: records without a document that are not blank.
        left_out: the records that gave no document, from the first one on: the blank lines and the bad ones.
    """

    num_documents: int
    bad_lines: list[BadLine] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=none_left_out)

    @property
    def num_records(self) -> int:
        """All records, blank and bad ones included."""
        return self.num_documents + num_left_out(self.left_out)

    @property
    def num_blank_lines(self) -> int:
        """Lines of nothing but white space."""
        return num_left_out(self.left_out) - len(self.bad_lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBlock(RecordsDone):
    """The documents of a block: one `Texts` per key in `columns`, all with the same number of documents."""

    columns: tuple[Texts, ...]


def parse_block(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block; records without them are listed, not raised. Safe from several threads.

    Text without keys, in lines or whole files, is what it is: only the newline that ends a line is no part of it (a
    carriage return before it is), nor the byte order mark at the beginning of a file.

    Args:
        block: a block of any format.
        keys: keys of the texts, see `value_at`; `text` for text without keys.

    Raises:
        ConfigError: text has no such keys.
    """
    parsed = block.texts(keys)
    return parse_carefully(block, keys) if parsed is None else parsed


def check_text_keys(path: str, keys: Sequence[str]) -> None:
    """Refuses keys for text that has none of its own.

    Raises:
        ConfigError: they are not `text` alone.
    """
    if tuple(keys) != (TEXT_KEY,):
        message = f"expected the key {TEXT_KEY!r} for `{path}`, which is text, got {list(keys)!r}"
        raise ConfigError(message)


def parse_carefully(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block, record by record, with the end of each document."""
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
            if not record.data:  # a row, whose length nobody knew before it was read
                _check_length(values, block.max_record_bytes)
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
        reason = f"expected a JSON object, found {kind_of(record)}"
        raise UnusableLineError(reason)
    values: list[list[str]] = []
    for key in keys:
        try:
            value = value_at(record, key)
        except LookupError as error:
            found = ", ".join(repr(name) for name in list(record)[:8]) or "none"
            reason = f"no key {key!r}; found {found}"
            raise UnusableLineError(reason) from error
        texts = value if type(value) is list else [value]
        for text in texts:
            if type(text) is not str:
                place = f"an array with {kind_of(text)}" if type(value) is list else kind_of(text)
                reason = f"expected a string or an array of strings under {key!r}, found {place}"
                raise UnusableLineError(reason)
        values.append([checked_text(text, repr(key)) for text in texts])
    return values


def _check_length(values: list[list[str]], max_record_bytes: int) -> None:
    """Refuses a record whose texts are too long."""
    if sum(len(text.encode("utf-8")) for value in values for text in value) > max_record_bytes:
        raise too_long(max_record_bytes)


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
        yield NumberedRecord(block.first_record, too_long(block.max_record_bytes), block.data)
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


def refuse_utf16(path: str, head: bytes) -> None:
    """Refuses a file that begins as text in UTF-16 does.

    Raises:
        InputError: it does.
    """
    if head.startswith(_UTF16_MARKS):
        message = f"`{path}`: expected UTF-8, found the byte order mark of UTF-16"
        raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")


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
