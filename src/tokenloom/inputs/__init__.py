"""What a corpus is made of: files of records, and the parts of them that one shard of a job reads."""

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
"""The command `zstd` has the same limit. Zstandard and xz allocate as much when a file says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What reading an input may take, where each record is looked at in Python.

    Attributes:
        max_record_bytes: longest record (a line, a file of text, the texts of a row); longer ones are bad.
        max_window_bytes: most memory for what zstd and xz look back on; a file that needs more is an error.
        memory_bytes: largest record batch of a table, decoded; a larger one is an error.
    """

    max_record_bytes: Bytes = RECORD_BYTES
    max_window_bytes: Bytes = WINDOW_BYTES
    memory_bytes: Bytes = 1 << 30

    def __post_init__(self) -> None:
        """Checks the limits."""
        checked_integer("memory_bytes", self.memory_bytes, at_least=64 << 20)
        checked_integer("max_record_bytes", self.max_record_bytes, at_least=1, below=(1 << 30) + 1)
        # what Zstandard can be told on every machine
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
            Of what can be read once only (standard input, a pipe) it is told by the first bytes, when these are read.
        num_bytes: its size; 0 for what can be read once only.
        version: what changes when the file does: modification time in nanoseconds, or the etag of an object; empty
            where there is none.
        is_stream: it can be read once only.
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
    """Some consecutive records of a file.

    Attributes:
        file: they belong to.
        start, stop: which: of lines that are not compressed, those that begin in the bytes [start, stop); of a format
            with units, such as the row groups of Parquet, the units [start, stop); of anything else, which is never
            cut, [0, 1).
    """

    file: InputFile
    start: int
    stop: int

    @property
    def numbers_records_from_its_start(self) -> bool:
        """Whether its records are numbered from 1 on, because nobody knows how many lines come before it.

        All other slices number their records as the file does: row groups know how many rows come before them.
        """
        return self.start > 0 and self.file.is_cut_by_bytes
