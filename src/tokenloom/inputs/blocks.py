"""What readers yield and worker threads parse: some consecutive records of a slice, not looked into yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

MAX_RECORD_BYTES = 256 << 20
"""Longer records are bad ones, unless the caller sets another limit. While it is tokenised, a line costs 5 times its
size with `gigatoken` (48 MB: 362 MB in all), 120 times with `tokenizers`."""

MAX_UNIT_BYTES = 1 << 30
"""Larger pages of Parquet and record batches of Arrow are refused, unless the caller sets another limit: each is there
as a whole, decoded. Their writers make pages of 1 MiB, and batches of 1000 rows."""

HEAD_BYTES = 1 << 10
"""Kept of a record that is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Some consecutive whole lines of a file.

    Attributes:
        path: of the file.
        first_record: number of the first line, from 1: see `InputSlice.numbers_records_from_its_start`.
        data: the bytes of the lines; the last line of the file may lack its newline.
        format: whether a line is a JSON object or a text.
        max_record_bytes: longer lines are bad lines.
        too_long: the block is the beginning of one of these; the rest was dropped.
    """

    unit: ClassVar[str] = "line"

    path: str
    first_record: int
    data: bytes
    format: Literal["jsonl", "text-lines"] = "jsonl"
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @property
    def num_text_bytes(self) -> int:
        """Size of the lines."""
        return len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock:
    """A whole file of text.

    Attributes:
        path: of the file.
        data: its bytes, decompressed.
        max_record_bytes: longer files are bad records.
        too_long: this is the beginning of one.
    """

    unit: ClassVar[str] = "file"
    first_record: ClassVar[int] = 1

    path: str
    data: bytes
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @property
    def num_text_bytes(self) -> int:
        """Size of the text."""
        return len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """Some consecutive rows of a table.

    Attributes:
        path: of the file.
        first_record: number of the first row in the file, from 1.
        batches: `pyarrow.RecordBatch`es of the columns that were asked for, at least one.
        max_record_bytes: rows with more bytes of text are bad rows.
        too_long: the block is one of these.
    """

    unit: ClassVar[str] = "row"

    path: str
    first_record: int
    batches: tuple[Any, ...]
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @property
    def num_text_bytes(self) -> int:
        """Size of the columns in memory, somewhat more than their text."""
        return sum(batch.nbytes for batch in self.batches)


Block = LineBlock | FileBlock | TableBlock
