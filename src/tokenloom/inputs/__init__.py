"""What a corpus is made of: files of records, and the parts of them that one shard of a job reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InputFormat = Literal["jsonl", "text-lines", "text-files", "parquet", "arrow"]
INPUT_FORMATS: tuple[InputFormat, ...] = ("jsonl", "text-lines", "text-files", "parquet", "arrow")
"""JSON lines; a document per line of text; a document per file of text; Parquet; Arrow (a file or a stream)."""

LINE_FORMATS: tuple[InputFormat, ...] = ("jsonl", "text-lines")
TEXT_FORMATS: tuple[InputFormat, ...] = ("text-lines", "text-files")
TEXT_KEY = "text"
"""The one key of formats that have no names for their texts."""

Compression = Literal["none", "gzip", "zstd", "bz2", "xz"]

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of the corpus, as it was when the job was planned.

    Attributes:
        path: of a local file, an address in object storage, or `-` for standard input.
        format: of its records.
        compression: of the whole file; formats that compress inside have none. Of what can be read once only (standard
            input, a pipe) it is told by the first bytes, when these are read.
        num_bytes: its size; 0 for what can be read once only.
        version: what changes when the file does: modification time in nanoseconds, or the etag of an object; empty
            where there is none.
        is_stream: it can be read once only.
    """

    path: str
    format: InputFormat
    compression: Compression
    num_bytes: int
    version: str
    is_stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlice:
    """Some consecutive records of a file.

    Attributes:
        file: they belong to.
        start, stop: which: of lines that are not compressed, those that begin in the bytes [start, stop); of Parquet,
            the row groups [start, stop); of anything else, which is never cut, [0, 1).
    """

    file: InputFile
    start: int
    stop: int

    @property
    def numbers_records_from_its_start(self) -> bool:
        """Whether its records are numbered from 1 on, because nobody knows how many lines come before it.

        All other slices number their records as the file does: row groups know how many rows come before them.
        """
        return self.file.format in LINE_FORMATS and self.start > 0
