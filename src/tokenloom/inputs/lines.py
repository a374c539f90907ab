"""Files of lines as blocks of whole lines."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import HEAD_BYTES, MAX_RECORD_BYTES
from tokenloom.inputs.left_out import blank_lines, num_left_out
from tokenloom.inputs.parsing import ParsedBlock, parse_block
from tokenloom.inputs.record_format import ReadOptions
from tokenloom.inputs.records import (
    MARK_BYTES,
    NOT_UTF16,
    NumberedRecord,
    UnusableLineError,
    begins_as_utf16,
    without_mark,
)
from tokenloom.inputs.streams import SliceStream
from tokenloom.storage.resolve import open_source

FEW_LINES = 1000
"""Lines that are looked at one by one where some are blank."""

_COUNT_BYTES = 16 << 20
_BLANK_LINES = re.compile(rb"\n\s*\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock(ABC):
    """Some consecutive whole lines of a file; a `Block`.

    Attributes:
        path: path of the file.
        first_record: number of the first line, from 1: see `InputSlice.numbers_records_from_its_start`.
        data: the bytes of the lines; the last line of the file may lack its newline.
        max_record_bytes: longer lines are bad lines.
        too_long: the block is the beginning of one of these; the rest was dropped.
    """

    unit: ClassVar[str] = "line"

    path: str
    first_record: int
    data: bytes
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @abstractmethod
    def plain_texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the texts of lines none of which is blank, or unusual otherwise; else None.

        Raises:
            ConfigError: no line can have such keys.
        """

    @abstractmethod
    def value_reader(self, loads: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        """Returns what reads a line that is not blank, as `NumberedRecord.value`; it may raise `UnusableLineError`."""

    @property
    def num_text_bytes(self) -> int:
        """Size of the lines."""
        return len(self.data)

    def beginning(self) -> bytes:
        """Returns the beginning of a line."""
        return self.data

    def lines(self) -> list[bytes]:
        """Returns the lines without their newlines."""
        lines = self.data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return lines

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the texts, if nothing is unusual but blank lines."""
        if (parsed := self.plain_texts(keys)) is not None:
            return parsed
        if (shorter := self._without_blank_lines()) is None:
            return None
        parsed = parse_block(shorter, keys)
        if parsed.bad_lines:  # whose numbers would be others
            return None
        left_out = blank_lines(self.data)
        return replace(parsed, num_blank_lines=num_left_out(left_out), left_out=left_out)

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the lines."""
        read = self.value_reader(loads)
        for number, line in enumerate(self.lines(), self.first_record):
            value: Any = None
            if line.strip():
                try:
                    value = read(line)
                except UnusableLineError as error:
                    value = error
            yield NumberedRecord(number, value, line, is_blank=not line.strip())

    def halves(self) -> tuple[LineBlock, LineBlock] | None:
        """Returns the first and the last lines."""
        data = self.data
        middle = data.find(b"\n", len(data) // 2) + 1
        if not 0 < middle < len(data):
            middle = data.rfind(b"\n", 0, len(data) // 2) + 1
        if self.too_long or not 0 < middle < len(data):
            return None
        first = self.first_record + data.count(b"\n", 0, middle)
        return replace(self, data=data[:middle]), replace(self, data=data[middle:], first_record=first)

    def _without_blank_lines(self) -> LineBlock | None:
        """Returns the block without lines of white space; None if it has few, which are counted one by one."""
        if self.data.count(b"\n") <= FEW_LINES:
            return None
        data = _BLANK_LINES.sub(b"\n", b"\n" + self.data).removeprefix(b"\n")
        num_blank = self._num_lines() - data.count(b"\n")
        return replace(self, data=data) if num_blank > FEW_LINES and not self.too_long else None

    def _num_lines(self) -> int:
        return self.data.count(b"\n") + (self.data[-1:] not in (b"", b"\n"))


class LineReader:
    """Reads a slice of a file of lines in blocks of whole lines; a `SliceReader`.

    Only a newline ends a line. Memory: one block, or the longest line if that is longer. Not safe from several threads.

    Args:
        slice_: slice of lines.
        options: options of reading; a block ends with the last line that fits.
        block: the class of its blocks.
        drops_mark: whether a byte order mark at the beginning of the file is no part of its first line.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(
        self, slice_: InputSlice, options: ReadOptions, *, block: type[LineBlock], drops_mark: bool = False
    ) -> None:
        self.block_bytes: int = options.block_bytes
        self.num_text_bytes: int = 0
        self.num_rows: int = 0
        self.num_bytes: int = slice_.stop - slice_.start if slice_.file.is_cut_by_bytes else slice_.file.num_bytes
        self._path = slice_.file.path
        self._new_block = block
        self._drops_mark = drops_mark
        self._begins_file = not slice_.numbers_records_from_its_start
        self._max_record_bytes = options.max_record_bytes
        self._stream = SliceStream(slice_, max_window_bytes=options.max_window_bytes)

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    @property
    def position(self) -> int:
        """Bytes of the slice, compressed as they may be, read so far; 0 where the system does not tell (a pipe)."""
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def blocks(self) -> Iterator[LineBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the compressed data is damaged or truncated, or the text is UTF-16.
            StorageError: reading failed.
        """
        pending: list[bytes] = []  # the beginning of a line whose end is not read yet
        num_pending = 0
        chunk = self._first_chunk()
        while chunk:
            end = chunk.find(b"\n")
            if num_pending + (len(chunk) if end < 0 else end) > self._max_record_bytes:
                yield self._block(b"".join([*pending, chunk])[:HEAD_BYTES], num_lines=1, too_long=True)
                pending, num_pending = [], 0
                chunk = self._after_line(chunk)
                continue
            cut = chunk.rfind(b"\n") + 1
            if cut:
                data = b"".join([*pending, memoryview(chunk)[:cut]])  # copied once, not twice
                yield self._block(data, num_lines=_num_newlines(data))
                pending, num_pending = [], 0
            pending.append(chunk[cut:])
            num_pending += len(chunk) - cut
            chunk = self._chunk()
        if num_pending:
            yield self._block(b"".join(pending), num_lines=1)

    def _block(self, data: bytes, *, num_lines: int, too_long: bool = False) -> LineBlock:
        first = self.num_rows + 1
        self.num_rows += num_lines
        return self._new_block(
            path=self._path,
            first_record=first,
            data=data,
            max_record_bytes=self._max_record_bytes,
            too_long=too_long,
        )

    def _first_chunk(self) -> bytes:
        chunk = self._chunk()
        if not self._begins_file:
            return chunk
        while 0 < len(chunk) < MARK_BYTES and (more := self._chunk()):
            chunk += more
        if begins_as_utf16(chunk):
            message = f"`{self._path}`: {NOT_UTF16}"
            raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")
        if self._drops_mark and (rest := without_mark(chunk)) != chunk:
            return rest or self._chunk()
        return chunk

    def _after_line(self, chunk: bytes) -> bytes:
        """Drops the rest of the current line, which `chunk` continues; returns what follows, b"" at the end.

        Of a line that goes on behind the slice, the rest is the next slices' to read: it is not read twice.
        """
        while chunk and not (self._stream.is_in_last_line and b"\n" not in chunk):
            _, newline, rest = chunk.partition(b"\n")
            if newline:
                return rest or self._chunk()
            chunk = self._chunk()
        return b""

    def _chunk(self) -> bytes:
        chunk = self._stream.read(min(self.block_bytes, self._max_record_bytes))
        self.num_text_bytes += len(chunk)
        return chunk


def _num_newlines(data: bytes | NDArray[np.uint8]) -> int:
    """Returns how many there are; four times as fast as `bytes.count` in Python 3.11, and without its lock."""
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")))


def count_lines_before(slice_: InputSlice) -> int:
    """Returns how many lines of a file begin before a slice, which is read up to there for that: for errors alone."""
    source = open_source(slice_.file.path)
    stop = slice_.start - 1  # a newline there ends the last of them
    if stop < 0:
        return 0
    return 1 + sum(_num_newlines(source.read(at, min(_COUNT_BYTES, stop - at))) for at in range(0, stop, _COUNT_BYTES))
