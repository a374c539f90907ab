"""Input files of a corpus, and the slices of them that one shard of a job reads."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.inputs.formats import FORMATS
from tokenloom.numbers import checked_integer
from tokenloom.setting_types import Bytes

TEXT_KEY = "text"
"""The one key of formats that have no names for their texts."""

STDIN = "-"

RECORD_BYTES = 16 << 20
"""While it is tokenized, a text costs 5 times its size with `gigatoken`, 120 times with `tokenizers`: 2 GB."""

WINDOW_BYTES = 128 << 20
"""The default limit of the command `zstd`. Zstandard and xz allocate the window that a file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of reading an input.

    Attributes:
        max_record_bytes: longest record (a line, a file of text, the texts of a row); longer ones are bad.
        max_window_bytes: memory limit for the windows of zstd and xz; a file that needs more is an error.
        memory_bytes: largest record batch of a table, decoded; a larger one is an error.
    """

    max_record_bytes: Bytes = RECORD_BYTES
    max_window_bytes: Bytes = WINDOW_BYTES
    memory_bytes: Bytes = 1 << 30

    def __post_init__(self) -> None:
        """Checks the limits."""
        checked_integer("memory_bytes", self.memory_bytes, at_least=64 << 20)
        checked_integer("max_record_bytes", self.max_record_bytes, at_least=1, below=(1 << 30) + 1)
        # the limit of Zstandard on every machine
        checked_integer("max_window_bytes", self.max_window_bytes, at_least=1 << 20, below=(1 << 31) + 1)

    def recorded(self) -> dict[str, int]:
        """Returns what of these decides which records are bad, for the manifest; nothing where it is as ever."""
        return {} if self.max_record_bytes == RECORD_BYTES else {"max_record_bytes": self.max_record_bytes}


DEFAULT_LIMITS = ReadLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of the corpus, as it was when the job was planned.

    Attributes:
        path: path of a local file, an address in object storage, or `-` for standard input.
        format: format of its records, one of `FORMATS`.
        compression: compression of the whole file, one of `CODECS` or "none"; formats that compress inside have none.
            That of a stream is detected when it is read.
        num_bytes: its size; 0 for a stream.
        version: modification time in nanoseconds, or the etag of an object; empty if there is none.
        is_stream: it can be read only once (standard input, a pipe).
    """

    path: str
    format: str
    compression: str
    num_bytes: int
    version: str
    is_stream: bool = False

    @property
    def is_cut_by_bytes(self) -> bool:
        """Whether its slices are ranges of bytes."""
        return self.compression == "none" and not self.is_stream and FORMATS[self.format].has_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlice:
    """Consecutive records of a file.

    Attributes:
        file: their file.
        start, stop: of lines that are not compressed, those that begin in the bytes [start, stop); of a format with
            units, such as the row groups of Parquet, the units [start, stop); else [0, 1), the whole file.
    """

    file: InputFile
    start: int
    stop: int

    @property
    def numbers_records_from_its_start(self) -> bool:
        """Whether its records are numbered from 1, as the number of lines before it is unknown; else as in the file."""
        return self.start > 0 and self.file.is_cut_by_bytes
