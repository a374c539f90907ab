"""Compressed bytes into text, a piece at a time: gzip, Zstandard, bzip2 and xz, of one or more members each."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from io import BufferedReader
from typing import Any

from tokenloom.errors import InputError, StorageError
from tokenloom.inputs import Compression
from tokenloom.inputs.zstd_frames import ZstdFrame
from tokenloom.optional import require
from tokenloom.storage.atomic import storage_errors

Read = Callable[[int], bytes]
"""Returns at most so many bytes of text, at least one, or b"" at the end."""

SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}
MAGIC_BYTES = 6

MAX_WINDOW_BYTES = 128 << 20
"""What a decompressor may look back on, unless the caller sets another limit; the command `zstd` has the same one. It
allocates as much when a file says so."""

_CHUNK_BYTES = 32 << 10  # compressed; what is behind the end of a member is copied, and a member may have 9 bytes
_LZMA_BYTES = 1 << 20  # that its decompressor needs beside the window
_TOO_LARGE = ("Memory usage limit exceeded", "Frame requires too much memory for decoding")


def compression_of(head: bytes) -> Compression:
    """Returns the compression that the first bytes of a file tell."""
    return next((compression for magic, compression in _MAGIC.items() if head.startswith(magic)), "none")


def decompressed(
    file: BufferedReader, path: str, compression: Compression, *, max_window_bytes: int = MAX_WINDOW_BYTES
) -> Read:
    """Returns what reads the text of a file from beginning to end.

    What it raises is an `InputError` where the compressed data is damaged or truncated, a `StorageError` where reading
    fails.

    Args:
        file: a binary stream.
        path: of the file, for messages.
        compression: of the file.
        max_window_bytes: that Zstandard and xz may take for what they look back on; more is an `InputError`.
    """
    if compression == "none":
        return lambda count: _read(file, path, count)
    if compression == "gzip":
        return _gzip_reader(file, path)
    return _MemberReader(file, path, compression, window_bytes=max_window_bytes).read


def _read(file: BufferedReader, path: str, count: int) -> bytes:
    with storage_errors("read", path):
        return file.read(count)


def _gzip_reader(file: BufferedReader, path: str) -> Read:
    igzip = require("isal.igzip", extra="preprocess")
    with storage_errors("read", path):
        if not file.peek(1):  # for the library, no bytes at all are no members, all of them whole
            raise _truncated(path, "gzip")
    stream = igzip.IGzipFile(fileobj=file, mode="rb")

    def read(count: int) -> bytes:
        try:
            data: bytes = stream.read(count)
        except EOFError as error:
            raise _truncated(path, "gzip") from error
        except (igzip.BadGzipFile, igzip.isal_zlib.error, OverflowError) as error:  # a header without end
            raise _damaged(path, "gzip", error) from error
        except StorageError:
            raise
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        return data

    return read


class _MemberReader:
    """Reads members (frames, streams) until the file ends; notices when it ends inside one.

    Memory: what is asked for at once, and the window of a member.
    """

    def __init__(self, file: BufferedReader, path: str, compression: Compression, *, window_bytes: int) -> None:
        self._file = file
        self._path = path
        self._compression = compression
        self._window_bytes = window_bytes
        self._open_member, self._errors = _decoder(compression, window_bytes)
        self._member: Any = None  # open while inside one
        self._unread = b""  # compressed, behind the end of a member
        self._text = b""  # more than was asked for, from `_start` on
        self._start = 0
        self._is_empty = True

    def read(self, count: int) -> bytes:
        """Returns `count` bytes of text; less only at the end."""
        parts = [self._text[self._start : self._start + count]]
        num_bytes = len(parts[0])
        self._start += num_bytes
        while num_bytes < count and (text := self._step(count - num_bytes)) is not None:
            self._text, self._start = text, count - num_bytes
            parts.append(text[: self._start])
            num_bytes += len(parts[-1])
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _step(self, count: int) -> bytes | None:
        """Returns some text, maybe none; None at the end of the file."""
        data = b""
        if self._member is None or self._member.needs_input:
            data, self._unread = self._unread, b""
            if not data:
                data = _read(self._file, self._path, _CHUNK_BYTES)
            if self._member is None and self._compression == "xz":
                data = data.lstrip(b"\0") or (b"" if not data else self._after_padding())
            if not data:
                if self._member is not None or self._is_empty:
                    raise _truncated(self._path, self._compression)
                return None
        if self._member is None:
            self._is_empty = False
            self._member = self._open_member()
        try:
            text: bytes = self._member.decompress(data, count)
        except self._errors as error:
            raise self._refused(error) from error
        if self._member.eof:
            self._unread = self._member.unused_data
            self._member = None
        return text

    def _after_padding(self) -> bytes:
        """Returns what follows the zeros that may stand between the streams of an xz file."""
        while data := _read(self._file, self._path, _CHUNK_BYTES):
            if data := data.lstrip(b"\0"):
                break
        return data

    def _refused(self, error: Exception) -> InputError:
        if not str(error).endswith(_TOO_LARGE):
            return _damaged(self._path, self._compression, error)
        limit = f"{self._window_bytes >> 20} MiB"
        message = f"`{self._path}`: expected a {self._compression} window of at most {limit}, found a larger one"
        with_less = "without `--long`, or with `--long=27`" if self._compression == "zstd" else "with `-9` at most"
        return InputError(message, hint=f"compress it anew {with_less}; or allow more with `max_window_bytes`")


def _decoder(compression: Compression, window_bytes: int) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Returns what opens a member, and what it raises for one that is damaged."""
    if compression == "zstd":
        zstandard = require("zstandard", extra="preprocess")
        decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
        return lambda: ZstdFrame(decompressor.decompressobj()), (zstandard.ZstdError,)
    if compression == "bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    memory_bytes = window_bytes + _LZMA_BYTES
    return lambda: lzma.LZMADecompressor(memlimit=memory_bytes), (lzma.LZMAError,)


def _truncated(path: str, kind: str) -> InputError:
    message = f"`{path}`: the {kind} data ends too early"
    return InputError(message, hint="the file is truncated or still being written")


def _damaged(path: str, kind: str, error: Exception) -> InputError:
    return InputError(f"`{path}`: expected {kind} data, but it is damaged: {error}")
