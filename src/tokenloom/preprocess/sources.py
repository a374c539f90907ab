"""Text files, plain or compressed, as blocks of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from tokenloom.errors import InputError, StorageError
from tokenloom.optional import require
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.resolve import open_stream

MAX_LINE_BYTES = 256 << 20
"""Longer lines are bad lines. While it is tokenised, a line costs 5 times its size with `gigatoken` (48 MB: 362 MB in
all), 120 times with `tokenizers`."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_CHUNK_BYTES = 32 << 10  # compressed; small, because nothing bounds what one call may return
_HEAD_BYTES = 1 << 10  # kept of a line that is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Some consecutive whole lines of a file.

    Attributes:
        data: the bytes of the lines; the last line of the file may lack its newline.
        first_line: number of the first line, from 1.
        too_long: the block is the beginning of a single line longer than `MAX_LINE_BYTES`; the rest was dropped.
    """

    data: bytes
    first_line: int
    too_long: bool = False


class LineReader:
    """Reads a file from beginning to end in blocks of whole lines.

    Only a newline ends a line. Memory: one block, or the longest line if that is longer. Not safe from several threads.

    Args:
        path: of the text; its name or its first bytes tell whether it is compressed by gzip or Zstandard.
        block_bytes: a block ends with the last line that fits; may be changed between blocks.
        max_line_bytes: see `LineBlock.too_long`.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: str, *, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path = path
        self.block_bytes = block_bytes  # less than `max_line_bytes`
        self.num_text_bytes = 0
        self._max_line_bytes = max_line_bytes
        self._file, self.num_file_bytes = open_stream(path, buffer_bytes=1 << 18)
        with storage_errors("read", path):
            magic = self._file.peek(4)
        self._read = _opened(self._file, path, magic)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @property
    def position(self) -> int:
        """Bytes of the file, compressed as it may be, read so far; 0 where the system does not tell (a pipe)."""
        return self._file.tell() if self._file.seekable() else 0

    def blocks(self) -> Iterator[LineBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the compressed data is damaged or truncated.
            StorageError: reading failed.
        """
        line = 1
        pending: list[bytes] = []  # the beginning of a line whose end is not read yet
        num_pending = 0
        chunk = self._chunk()
        while chunk:
            end = chunk.find(b"\n")
            if num_pending + (len(chunk) if end < 0 else end) > self._max_line_bytes:
                yield LineBlock(data=b"".join([*pending, chunk])[:_HEAD_BYTES], first_line=line, too_long=True)
                line += 1
                pending, num_pending = [], 0
                chunk = self._after_line(chunk)
                continue
            cut = chunk.rfind(b"\n") + 1
            if cut:
                data = b"".join([*pending, chunk[:cut]])
                yield LineBlock(data=data, first_line=line)
                line += data.count(b"\n")
                pending, num_pending = [], 0
            pending.append(chunk[cut:])
            num_pending += len(chunk) - cut
            chunk = self._chunk()
        if num_pending:
            yield LineBlock(data=b"".join(pending), first_line=line)

    def _after_line(self, chunk: bytes) -> bytes:
        """Drops the rest of the current line, which `chunk` continues; returns what follows, b"" at the end."""
        while chunk:
            _, newline, rest = chunk.partition(b"\n")
            if newline:
                return rest or self._chunk()
            chunk = self._chunk()
        return b""

    def _chunk(self) -> bytes:
        chunk = self._read(self.block_bytes)
        self.num_text_bytes += len(chunk)
        return chunk


def _opened(file: IO[bytes], path: str, magic: bytes) -> Callable[[int], bytes]:
    if path.endswith(".gz") or magic.startswith(_GZIP_MAGIC):
        return _gzip_reader(file, path)
    if path.endswith(".zst") or magic.startswith(_ZSTD_MAGIC):
        return _ZstandardReader(file, path).read
    return _plain_reader(file, path)


def _plain_reader(file: IO[bytes], path: str) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        with storage_errors("read", path):
            return file.read(count)

    return read


def _gzip_reader(file: IO[bytes], path: str) -> Callable[[int], bytes]:
    igzip = require("isal.igzip", extra="preprocess")
    stream = igzip.IGzipFile(fileobj=file, mode="rb")

    def read(count: int) -> bytes:
        try:
            data: bytes = stream.read(count)
        except EOFError as error:
            raise _truncated(path, "gzip") from error
        except (igzip.BadGzipFile, igzip.isal_zlib.error) as error:
            raise _damaged(path, "gzip", error) from error
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        return data

    return read


class _ZstandardReader:
    """Reads frames until the file ends; notices, unlike the library's own reader, when it ends inside one."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._zstandard = require("zstandard", extra="preprocess")
        self._file = file
        self._path = path
        self._context = self._zstandard.ZstdDecompressor()
        self._frame: Any = None  # open while inside a frame
        self._unread = b""  # compressed, behind the end of a frame

    def read(self, count: int) -> bytes:
        """Returns `count` bytes of text or somewhat more; less only at the end."""
        parts: list[bytes] = []
        while count > 0 and (part := self._step()) is not None:
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _step(self) -> bytes | None:
        data, self._unread = self._unread, b""
        if not data:
            with storage_errors("read", self._path):
                data = self._file.read(_ZSTD_CHUNK_BYTES)
        if not data:
            if self._frame is not None:
                raise _truncated(self._path, "zstd")
            return None
        if self._frame is None:
            self._frame = self._context.decompressobj()
        try:
            text: bytes = self._frame.decompress(data)
        except self._zstandard.ZstdError as error:
            raise _damaged(self._path, "zstd", error) from error
        if self._frame.eof:
            self._unread = self._frame.unused_data
            self._frame = None
        return text


def _truncated(path: str, kind: str) -> InputError:
    message = f"`{path}`: the {kind} data ends too early"
    return InputError(message, hint="the file is truncated or still being written")


def _damaged(path: str, kind: str, error: Exception) -> InputError:
    return InputError(f"`{path}`: expected {kind} data, but it is damaged: {error}")
