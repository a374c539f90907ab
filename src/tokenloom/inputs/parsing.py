"""Blocks of records into texts, with a reason for every record that holds none.

Nearly all blocks hold nothing but good records with one text under each key: a kernel takes the texts out of these
without making Python objects. Any other block is parsed as a whole, and record by record only if there is something
wrong in it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.blocks import Block, FileBlock, LineBlock, TableBlock
from tokenloom.inputs.key_paths import value_at
from tokenloom.inputs.records import (
    BadLine,
    UnusableLineError,
    bad_line,
    check_shape,
    kind_of,
    lines_of,
    records_of,
    too_long,
)
from tokenloom.inputs.table_columns import texts_of_columns
from tokenloom.inputs.utf8_texts import Utf8Texts, encodable
from tokenloom.kernels import json_texts, line_texts
from tokenloom.optional import require

_CHECKED_BYTES = 1 << 20
"""Shorter lines of JSON take little memory, whatever is in them."""

_FEW_LINES = 1000
_BLANK_LINES = re.compile(rb"\n\s*\n")


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
class ParsedBlock:
    """The documents of a block: one `Texts` per key, all with the same number of documents."""

    columns: tuple[Texts, ...]
    num_documents: int
    num_blank_lines: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)


def parse_block(block: Block, keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of a block; records without them are listed, not raised. Safe from several threads.

    Text without keys, in lines or whole files, is what it is: only the newline that ends a line is no part of it (a
    carriage return before it is), nor the byte order mark at the beginning of a file.

    Args:
        block: of any format.
        keys: of the texts: see `value_at`; of text without keys, `text`.

    Raises:
        ConfigError: text has no such keys.
    """
    if isinstance(block, TableBlock):
        if not block.too_long and (columns := texts_of_columns(block, keys)) is not None:
            return ParsedBlock(
                columns=tuple(Texts(texts=texts, document_ends=ends) for texts, ends in columns),
                num_documents=sum(map(len, block.batches)),
            )
    elif isinstance(block, FileBlock) or block.format == "text-lines":
        if tuple(keys) != (TEXT_KEY,):
            message = f"expected the key {TEXT_KEY!r} for `{block.path}`, which is text, got {list(keys)!r}"
            raise ConfigError(message)
        if isinstance(block, LineBlock) and (texts := _texts_of_lines(block)) is not None:
            return ParsedBlock(columns=(Texts(texts=texts),), num_documents=len(texts))
    elif not block.too_long and (parsed := _parse_fast(block, keys)) is not None:
        return parsed
    if isinstance(block, LineBlock) and (shorter := _without_blank_lines(block)) is not None:
        parsed = parse_block(shorter, keys)
        if not parsed.bad_lines:  # whose numbers would be others
            return replace(parsed, num_blank_lines=_num_lines(block) - _num_lines(shorter) + parsed.num_blank_lines)
    return _parse_carefully(block, keys)


def _without_blank_lines(block: LineBlock) -> LineBlock | None:
    """Returns the block without lines of white space; None if it has few, which are counted one by one."""
    if block.data.count(b"\n") <= _FEW_LINES:
        return None
    data = _BLANK_LINES.sub(b"\n", b"\n" + block.data).removeprefix(b"\n")
    num_blank = _num_lines(block) - data.count(b"\n")
    return replace(block, data=data) if num_blank > _FEW_LINES and not block.too_long else None


def _num_lines(block: LineBlock) -> int:
    return block.data.count(b"\n") + (block.data[-1:] not in (b"", b"\n"))


def _parse_fast(block: LineBlock, keys: Sequence[str]) -> ParsedBlock | None:
    """Returns the texts of lines of JSON; None if anything is unusual."""
    loads = require("orjson", extra="preprocess").loads
    if (parsed := _parse_natively(block, keys)) is not None:
        return parsed
    if block.data.count(b"\n") > _FEW_LINES and block.data.count(b"\n\n") > _FEW_LINES:  # these are left out first
        return None
    try:
        lines = lines_of(block)
        for line in lines:
            if len(line) > _CHECKED_BYTES:
                check_shape(line)
        columns = _columns(lines, keys, loads)
    except (ValueError, LookupError, TypeError, UnusableLineError):
        return None
    if any(set(map(type, column)) != {str} for column in columns):
        return None
    return ParsedBlock(columns=tuple(Texts(texts=column) for column in columns), num_documents=len(lines))


def _parse_natively(block: LineBlock, keys: Sequence[str]) -> ParsedBlock | None:
    """Returns the texts of lines of JSON; None if a document may have several, or anything is unusual."""
    if any("." in key for key in keys):  # it may lead into objects
        return None
    try:
        columns = json_texts(block.data, [key.encode() for key in keys])
    except UnicodeEncodeError:
        return None
    if columns is None:
        return None
    texts = [Utf8Texts(content=content, offsets=offsets) for content, offsets in columns]
    return ParsedBlock(columns=tuple(Texts(texts=column) for column in texts), num_documents=len(texts[0]))


def _columns(lines: list[bytes], keys: Sequence[str], loads: Any) -> list[list[Any]]:
    """Returns the values under each key; each record is dropped at once, which doubles the speed for short texts."""
    if len(keys) == 1:
        [key] = keys
        if "." in key:
            return [[value_at(loads(line), key) for line in lines]]
        return [[loads(line)[key] for line in lines]]
    rows = list(map(_getter(keys), map(loads, lines)))
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in keys]


def _getter(keys: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if any("." in key for key in keys):
        return lambda record: tuple(value_at(record, key) for key in keys)
    return operator.itemgetter(*keys)


def _texts_of_lines(block: LineBlock) -> Utf8Texts | None:
    """Returns lines of text; None if anything is unusual."""
    if block.too_long or (found := line_texts(block.data)) is None:
        return None
    content, offsets = found
    return Utf8Texts(content=content, offsets=offsets)


def _parse_carefully(block: Block, keys: Sequence[str]) -> ParsedBlock:
    columns: list[list[str]] = [[] for _ in keys]
    ends: list[list[int]] = [[] for _ in keys]
    bad_lines: list[BadLine] = []
    num_blank_lines = 0
    for record in records_of(block):
        if record.is_blank:
            num_blank_lines += 1
            continue
        try:
            values = _values(record.value, keys)
            if isinstance(block, TableBlock):
                _check_length(values, block.max_record_bytes)
        except UnusableLineError as error:
            bad_lines.append(bad_line(block, record, str(error)))
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
        values.append([encodable(text) for text in texts])
    return values


def _check_length(values: list[list[str]], max_record_bytes: int) -> None:
    """Refuses a row whose texts are too long; lines and files were measured when they were read."""
    if sum(len(text.encode("utf-8")) for value in values for text in value) > max_record_bytes:
        raise too_long(max_record_bytes)
