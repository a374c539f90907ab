"""Lines of JSON into texts, with a reason for every line that holds none.

Nearly all blocks hold nothing but good lines, so these are parsed without looking at any line twice; only a block in
which something is unusual is parsed again line by line.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.optional import require
from tokenloom.preprocess.sources import MAX_LINE_BYTES, LineBlock
from tokenloom.preprocess.text_tokenizer import encodable

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts under one key.

    Attributes:
        texts: back to back; one per document, or one per sentence.
        document_ends: int64[num_documents], the number of texts before each document's end; None if each text is one.
    """

    texts: list[str]
    document_ends: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that holds no document: its number from 1, the reason, and its bytes without the newline."""

    line: int
    reason: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBlock:
    """The documents of a block: one `Texts` per key, all with the same number of documents."""

    columns: tuple[Texts, ...]
    num_documents: int
    num_blank_lines: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)


def parse_block(block: LineBlock, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block; lines without them are listed, not raised. Safe from several threads."""
    if block.too_long:
        reason = f"longer than {MAX_LINE_BYTES} bytes; only its beginning is kept"
        bad_line = BadLine(line=block.first_line, reason=reason, data=block.data)
        return ParsedBlock(columns=tuple(Texts(texts=[]) for _ in keys), num_documents=0, bad_lines=[bad_line])
    loads = require("orjson", extra="preprocess").loads
    lines = block.data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        columns = _columns(lines, keys, loads)
    except (ValueError, LookupError, TypeError):
        return _parse_carefully(lines, block.first_line, keys, loads)
    if any(set(map(type, column)) != {str} for column in columns):
        return _parse_carefully(lines, block.first_line, keys, loads)
    return ParsedBlock(columns=tuple(Texts(texts=column) for column in columns), num_documents=len(lines))


def _columns(lines: list[bytes], keys: Sequence[str], loads: Any) -> list[list[Any]]:
    """Returns the values under each key; each record is dropped at once, which doubles the speed for short texts."""
    if len(keys) == 1:
        [key] = keys
        return [[loads(line)[key] for line in lines]]
    rows = list(map(operator.itemgetter(*keys), map(loads, lines)))
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in keys]


class UnusableLineError(Exception):
    """A line holds no document; carries the reason."""


def _parse_carefully(lines: list[bytes], first_line: int, keys: Sequence[str], loads: Any) -> ParsedBlock:
    columns: list[list[str]] = [[] for _ in keys]
    ends: list[list[int]] = [[] for _ in keys]
    bad_lines: list[BadLine] = []
    num_blank_lines = 0
    for number, line in enumerate(lines, first_line):
        if not line.strip():
            num_blank_lines += 1
            continue
        try:
            values = _values(parse_record(line, loads), keys)
        except UnusableLineError as error:
            bad_lines.append(BadLine(line=number, reason=str(error), data=line))
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
        num_blank_lines=num_blank_lines,
        bad_lines=bad_lines,
    )


def parse_record(line: bytes, loads: Any) -> Any:
    """Returns the value of a line of JSON.

    Args:
        line: its bytes.
        loads: of `orjson`; what it refuses and the standard library accepts is read by the latter.

    Raises:
        UnusableLineError: it is not JSON.
    """
    try:
        return loads(line)
    except ValueError:
        pass  # orjson refuses lone surrogates, NaN and byte order marks, which the standard library accepts
    try:
        return json.loads(line.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}"
        raise UnusableLineError(reason) from error
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.colno}"
        raise UnusableLineError(reason) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand levels of nesting
        reason = f"not JSON that can be read: {error}"
        raise UnusableLineError(reason) from error


def _values(record: Any, keys: Sequence[str]) -> list[list[str]]:
    """Returns the texts of one document under each key."""
    if type(record) is not dict:
        reason = f"expected a JSON object, found {kind_of(record)}"
        raise UnusableLineError(reason)
    values: list[list[str]] = []
    for key in keys:
        if key not in record:
            found = ", ".join(repr(name) for name in list(record)[:8]) or "none"
            reason = f"no key {key!r}; found {found}"
            raise UnusableLineError(reason)
        value = record[key]
        texts = value if type(value) is list else [value]
        for text in texts:
            if type(text) is not str:
                place = f"an array with {kind_of(text)}" if type(value) is list else kind_of(text)
                reason = f"expected a string or an array of strings under {key!r}, found {place}"
                raise UnusableLineError(reason)
        values.append([encodable(text) for text in texts])
    return values


def kind_of(value: Any) -> str:
    """Returns what a JSON value is, in words."""
    return _KINDS.get(type(value), "a number")
