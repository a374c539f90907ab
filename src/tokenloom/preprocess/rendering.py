"""Blocks of lines or rows into texts made of parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.indexed.roles import PartKind
from tokenloom.optional import require
from tokenloom.preprocess.chat_templates import ChatTemplate
from tokenloom.preprocess.parquet import RowBlock
from tokenloom.preprocess.parsing import BadLine, UnusableLineError, parse_record
from tokenloom.preprocess.schemas import Record, Schema, detect_schema, read_record
from tokenloom.preprocess.sources import MAX_LINE_BYTES, LineBlock

_BLANK = object()

Block = LineBlock | RowBlock


def schema_of(block: Block | None) -> Schema:
    """Returns the schema of the first record that has one; `messages` where there is no record at all."""
    failure: ConfigError | None = None
    for _, record, _ in () if block is None else _records(block):
        if type(record) is dict:
            try:
                return detect_schema(record)
            except ConfigError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return "messages"


def _records(block: Block) -> Iterator[tuple[int, Any, bytes]]:
    """Yields (line, record, bytes): `_BLANK` for a blank line, an `UnusableLineError` for one that is not JSON."""
    if isinstance(block, RowBlock):
        for number, row in enumerate(block.rows, block.first_row):
            yield number, row, b""
        return
    if block.too_long:
        reason = f"longer than {MAX_LINE_BYTES} bytes; only its beginning is kept"
        yield block.first_line, UnusableLineError(reason), block.data
        return
    loads = require("orjson", extra="preprocess").loads
    lines = block.data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, block.first_line):
        if not line.strip():
            yield number, _BLANK, line
            continue
        try:
            yield number, parse_record(line, loads), line
        except UnusableLineError as error:
            yield number, error, line


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sequence as text: its parts, and what kind each is."""

    parts: list[str]
    kinds: list[int]

    @property
    def text(self) -> str:
        """All parts."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedBlock:
    """The sequences of a block as text; `owners` names the document of each."""

    sequences: list[Rendered]
    owners: list[int]
    num_documents: int
    num_blank_lines: int
    bad_lines: list[BadLine]


class Renderer:
    """Turns blocks of lines into texts; safe from several threads.

    Args:
        template: of conversations; None for the schema `text`, which needs none.
        schema: of the records.
    """

    def __init__(self, template: ChatTemplate | None, *, schema: Schema) -> None:
        self._template = template
        self._schema = schema

    def __call__(self, block: Block) -> RenderedBlock:
        """Returns the texts of a block; lines without any are listed, not raised."""
        sequences: list[Rendered] = []
        owners: list[int] = []
        bad_lines: list[BadLine] = []
        num_blank_lines = num_documents = 0
        for number, record, data in _records(block):
            if record is _BLANK:
                num_blank_lines += 1
                continue
            try:
                if isinstance(record, UnusableLineError):
                    raise record
                found = self._sequences(read_record(record, self._schema))
            except UnusableLineError as error:
                data = data or json.dumps(record, ensure_ascii=False, default=repr).encode("utf-8", "replace")
                bad_lines.append(BadLine(line=number, reason=str(error), data=data))
                continue
            owners += [num_documents] * len(found)
            sequences += found
            num_documents += 1
        return RenderedBlock(
            sequences=sequences,
            owners=owners,
            num_documents=num_documents,
            num_blank_lines=num_blank_lines,
            bad_lines=bad_lines,
        )

    def texts(self, block: Block | None) -> list[str]:
        """Returns the texts of a block; bad lines are left to the run itself."""
        return [] if block is None else [sequence.text for sequence in self(block).sequences]

    def _sequences(self, record: Record) -> list[Rendered]:
        if record.text is not None:
            return [Rendered([record.text], [PartKind.text])]
        assert self._template is not None  # there is one for every schema but `text`
        rendered = map(self._template.render, record.conversations)
        return [
            Rendered(
                [part.text for part in parts],
                [PartKind.answer if part.is_answer else PartKind.prompt for part in parts],
            )
            for parts in rendered
        ]
