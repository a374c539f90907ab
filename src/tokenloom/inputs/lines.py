"""Files of lines as blocks of whole lines, and files of text as one block each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import numpy as np

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import HEAD_BYTES, MAX_RECORD_BYTES, FileBlock, LineBlock
from tokenloom.inputs.decompression import MAX_WINDOW_BYTES
from tokenloom.inputs.streams import SliceStream, is_cut_by_bytes
from tokenloom.storage.resolve import open_source

_COUNT_BYTES = 16 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class LineReader:
    """Reads a slice of a file of lines in blocks of whole lines; a `SliceReader`.

    Only a newline ends a line. Memory: one block, or the longest line if that is longer. Not safe from several threads.

    Args:
        slice_: of JSON lines or lines of text.
        block_bytes: a block ends with the last line that fits; may be changed between blocks.
        max_record_bytes: see `LineBlock.too_long`.
        max_window_bytes: see `decompressed`.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(
        self,
        slice_: InputSlice,
        *,
        block_bytes: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_window_bytes: int = MAX_WINDOW_BYTES,
    ) -> None:
        self.block_bytes = block_bytes
        self.num_text_bytes = 0
        self.num_rows = 0
        self.num_bytes = slice_.stop - slice_.start if is_cut_by_bytes(slice_.file) else slice_.file.num_bytes
        self._path = slice_.file.path
        self._format = cast("Literal['jsonl', 'text-lines']", slice_.file.format)
        self._begins_file = not slice_.numbers_records_from_its_start
        self._max_record_bytes = max_record_bytes
        self._stream = SliceStream(slice_, max_window_bytes=max_window_bytes)

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
                data = b"".join([*pending, chunk[:cut]])
                yield self._block(data, num_lines=data.count(b"\n"))
                pending, num_pending = [], 0
            pending.append(chunk[cut:])
            num_pending += len(chunk) - cut
            chunk = self._chunk()
        if num_pending:
            yield self._block(b"".join(pending), num_lines=1)

    def _block(self, data: bytes, *, num_lines: int, too_long: bool = False) -> LineBlock:
        first = self.num_rows + 1
        self.num_rows += num_lines
        return LineBlock(
            path=self._path,
            first_record=first,
            data=data,
            format=self._format,
            max_record_bytes=self._max_record_bytes,
            too_long=too_long,
        )

    def _first_chunk(self) -> bytes:
        chunk = self._chunk()
        if not self._begins_file:
            return chunk
        while 0 < len(chunk) < len(_UTF8_MARK) and (more := self._chunk()):
            chunk += more
        _refuse_utf16(chunk, self._path)
        if self._format == "text-lines" and chunk.startswith(_UTF8_MARK):
            return chunk[len(_UTF8_MARK) :] or self._chunk()
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


class FileReader:
    """Reads a file of text, which is one record, as one block; a `SliceReader`. Memory: the file.

    Args:
        slice_: the whole file.
        block_bytes: without effect.
        max_record_bytes: of a longer file only the beginning is kept, and the rest is read and dropped.
        max_window_bytes: see `decompressed`.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(
        self,
        slice_: InputSlice,
        *,
        block_bytes: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_window_bytes: int = MAX_WINDOW_BYTES,
    ) -> None:
        self.block_bytes = block_bytes
        self.num_text_bytes = 0
        self.num_rows = 0
        self.num_bytes = slice_.file.num_bytes
        self._path = slice_.file.path
        self._max_record_bytes = max_record_bytes
        self._stream = SliceStream(slice_, max_window_bytes=max_window_bytes)

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._stream.position

    def blocks(self) -> Iterator[FileBlock]:
        """Yields the block.

        Raises:
            InputError: the compressed data is damaged or truncated.
            StorageError: reading failed.
        """
        parts: list[bytes] = []
        while chunk := self._stream.read(1 << 20):
            self.num_text_bytes += len(chunk)
            if self.num_text_bytes <= self._max_record_bytes:
                parts.append(chunk)
            else:
                parts = [b"".join([*parts, chunk])[:HEAD_BYTES]]
        self.num_rows = 1
        too_long = self.num_text_bytes > self._max_record_bytes
        data = b"".join(parts)
        yield FileBlock(path=self._path, data=data, max_record_bytes=self._max_record_bytes, too_long=too_long)


def _refuse_utf16(head: bytes, path: str) -> None:
    if head.startswith(_UTF16_MARKS):
        message = f"`{path}`: expected UTF-8, found the byte order mark of UTF-16"
        raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")


def count_lines_before(slice_: InputSlice) -> int:
    """Returns how many lines of a file begin before a slice, which is read up to there for that: for errors alone."""
    source = open_source(slice_.file.path)
    stop = slice_.start - 1  # a newline there ends the last of them
    if stop < 0:
        return 0
    newlines = (source.read(at, min(_COUNT_BYTES, stop - at)) == ord("\n") for at in range(0, stop, _COUNT_BYTES))
    return 1 + sum(int(np.count_nonzero(found)) for found in newlines)
