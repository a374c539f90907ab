"""What a corpus is made of: files of records, and the parts of them that one shard of a job reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InputFormat = Literal["jsonl", "text-lines", "text-files", "parquet", "arrow"]
INPUT_FORMATS: tuple[InputFormat, ...] = ("jsonl", "text-lines", "text-files", "parquet", "arrow")
"""JSON lines; a document per line of text; a document per file of text; Parquet; Arrow (a file or a stream)."""

Compression = Literal["none", "gzip", "zstd", "bz2", "xz"]

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of the corpus, as it was when the job was planned.

    Attributes:
        path: of a local file, an address in object storage, or `-` for standard input.
        format: of its records.
        compression: of the whole file; formats that compress inside have none.
        num_bytes: its size; 0 for standard input.
        version: what changes when the file does: modification time in nanoseconds, or the etag of an object.
    """

    path: str
    format: InputFormat
    compression: Compression
    num_bytes: int
    version: str


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
