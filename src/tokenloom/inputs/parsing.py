"""Blocks of records into texts, with a reason for every record that holds none.

Nearly all blocks hold nothing but good records with one text under each key, which their formats take out at once. Any
other block is parsed record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import LeftOut, left_out_of, none_left_out, num_left_out
from tokenloom.inputs.records import (
    BadLine,
    UnusableLineError,
    bad_line,
    checked_text,
    kind_of,
    records_of,
    too_long,
    value_at,
)


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
