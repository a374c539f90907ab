"""The classes `InputFile` and `InputSlice`, and size limits for reading."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.inputs.formats import FORMATS
from tokenloom.numbers import checked_integer
from tokenloom.setting_types import Bytes

TEXT_KEY = "text"
"""The only key of formats without named fields (plain text)."""

STDIN = "-"

RECORD_BYTES = 16 << 20
"""Default `max_record_bytes`. Memory per text: 4 to 23 times its size in `gigatoken`, 110 to 235 in `tokenizers`."""

WINDOW_BYTES = 128 << 20
"""Default `max_window_bytes`; `zstd` has the same default. Decoders allocate the window that a file requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Size limits for reading an input.

    Attributes:
        max_record_bytes: maximum size of a record (a line, a text file, the texts of a row); a longer record is bad.
        max_window_bytes: memory limit for the decompression window of zstd and xz; a larger window is an error.
        memory_bytes: maximum size of a decoded record batch of a table; a larger batch is an error.
    """

    max_record_bytes: Bytes = RECORD_BYTES
    max_window_bytes: Bytes = WINDOW_BYTES
    memory_bytes: Bytes = 1 << 30

    def __post_init__(self) -> None:
        checked_integer("memory_bytes", self.memory_bytes, at_least=64 << 20)
        checked_integer("max_record_bytes", self.max_record_bytes, at_least=1, below=(1 << 30) + 1)
        # The upper bound is the limit of the Zstandard library.
        checked_integer("max_window_bytes", self.max_window_bytes, at_least=1 << 20, below=(1 << 31) + 1)

    def recorded(self) -> dict[str, int]:
        """Returns the limits to record in manifests, {name: bytes}: `max_record_bytes` if it is not the default."""
        return {} if self.max_record_bytes == RECORD_BYTES else {"max_record_bytes": self.max_record_bytes}


DEFAULT_LIMITS = ReadLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """An input file, with its size and version at planning time.

    Attributes:
        path: path of a local file, an address in object storage, or `-` for standard input.
        format: format of the records, one of `FORMATS`.
        compression: compression of the whole file, one of `CODECS` or "none"; "none" for formats with internal
            compression, and for streams, whose compression is detected during reading.
        num_bytes: size of the file in bytes; 0 for a stream.
        version: modification time in nanoseconds as a decimal string; in object storage, the etag; "" if unknown.
        is_stream: whether the file can be read only once (standard input, a pipe).
    """

    path: str
    format: str
    compression: str
    num_bytes: int
    version: str
    is_stream: bool = False

    @property
    def is_cut_by_bytes(self) -> bool:
        """Whether slices of the file are byte ranges."""
        return self.compression == "none" and not self.is_stream and FORMATS[self.format].has_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlice:
    """A range of consecutive records of a file.

    Attributes:
        file: the file.
        start, stop: the half-open range. In uncompressed files of lines, a range of bytes: a line belongs to the slice
            in which it starts. In other files, a range of units: row groups of Parquet, or the file as a single unit.
    """

    file: InputFile
    start: int
    stop: int

    @property
    def numbers_records_from_its_start(self) -> bool:
        """Whether record numbers count from the start of the slice, because the number of earlier lines is unknown."""
        return self.start > 0 and self.file.is_cut_by_bytes
