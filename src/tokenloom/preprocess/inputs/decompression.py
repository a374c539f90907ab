"""Compressed bytes into text, a piece at a time: gzip, Zstandard, bzip2 and xz, of one or more members each."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from io import BufferedReader
from typing import Any

from tokenloom.errors import InputError, StorageError
from tokenloom.optional import require
from tokenloom.preprocess.inputs import Compression
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

_CHUNK_BYTES = 256 << 10  # compressed
_ZSTD_CHUNK_BYTES = 32 << 10  # small, because nothing bounds what one call may return


def compression_of(head: bytes) -> Compression:
    """Returns the compression that the first bytes of a file tell."""
    return next((compression for magic, compression in _MAGIC.items() if head.startswith(magic)), "none")


def decompressed(file: BufferedReader, path: str, compression: Compression) -> Read:
    """Returns what reads the text of a file from beginning to end.

    What it raises is an `InputError` where the compressed data is damaged or truncated, a `StorageError` where reading
    fails.

    Args:
        file: a binary stream.
        path: of the file, for messages.
        compression: of the file.
    """
    if compression == "none":
        return lambda count: _read(file, path, count)
    if compression == "gzip":
        return _gzip_reader(file, path)
    return _MemberReader(file, path, compression).read


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
        except (igzip.BadGzipFile, igzip.isal_zlib.error) as error:
            raise _damaged(path, "gzip", error) from error
        except StorageError:
            raise
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        return data

    return read


class _MemberReader:
    """Reads members (frames, streams) until the file ends; notices when it ends inside one."""

    def __init__(self, file: BufferedReader, path: str, compression: Compression) -> None:
        self._file = file
        self._path = path
        self._compression = compression
        self._open_member, self._errors = _decoder(compression)
        self._chunk_bytes = _ZSTD_CHUNK_BYTES if compression == "zstd" else _CHUNK_BYTES
        self._member: Any = None  # open while inside one
        self._unread = b""  # compressed, behind the end of a member
        self._text = b""  # more than was asked for
        self._is_empty = True

    def read(self, count: int) -> bytes:
        """Returns `count` bytes of text; less only at the end."""
        parts = [self._text] if self._text else []
        num_bytes = len(self._text)
        while num_bytes < count and (part := self._step(count - num_bytes)) is not None:
            parts.append(part)
            num_bytes += len(part)
        text = parts[0] if len(parts) == 1 else b"".join(parts)
        self._text = text[count:]
        return text[:count] if self._text else text

    def _step(self, count: int) -> bytes | None:
        """Returns some text, maybe none; None at the end of the file."""
        data = b""
        if self._member is None or self._member_needs_input():
            data, self._unread = self._unread, b""
            if not data:
                data = _read(self._file, self._path, self._chunk_bytes)
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
            text: bytes = self._decompress(data, count)
        except self._errors as error:
            raise self._refused(error) from error
        if self._member.eof:
            self._unread = self._member.unused_data
            self._member = None
        return text

    def _member_needs_input(self) -> bool:
        return self._compression == "zstd" or bool(self._member.needs_input)

    def _decompress(self, data: bytes, count: int) -> Any:
        if self._compression == "zstd":
            return self._member.decompress(data)
        return self._member.decompress(data, count)

    def _after_padding(self) -> bytes:
        """Returns what follows the zeros that may stand between the streams of an xz file."""
        while data := _read(self._file, self._path, self._chunk_bytes):
            if data := data.lstrip(b"\0"):
                break
        return data

    def _refused(self, error: Exception) -> InputError:
        if self._compression == "zstd" and "too much memory" in str(error):
            message = f"`{self._path}`: expected a zstd window of at most 128 MiB, found a larger one"
            return InputError(message, hint="compress it anew without `--long`, or with `--long=27`")
        return _damaged(self._path, self._compression, error)


def _decoder(compression: Compression) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Returns what opens a member, and what it raises for one that is damaged."""
    if compression == "zstd":
        zstandard = require("zstandard", extra="preprocess")
        return zstandard.ZstdDecompressor().decompressobj, (zstandard.ZstdError,)
    if compression == "bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    return lzma.LZMADecompressor, (lzma.LZMAError,)


def _truncated(path: str, kind: str) -> InputError:
    message = f"`{path}`: the {kind} data ends too early"
    return InputError(message, hint="the file is truncated or still being written")


def _damaged(path: str, kind: str, error: Exception) -> InputError:
    return InputError(f"`{path}`: expected {kind} data, but it is damaged: {error}")
