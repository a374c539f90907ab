"""Decompresses input files, member by member: a member is a frame of zstd, or a stream of gzip, bzip2 or xz.

The file objects of the compression libraries are not safe enough: bzip2 and xz silently drop the rest of a file after a
damaged member, xz has no memory limit, and zstd accepts a truncated frame.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs import WINDOW_BYTES
from tokenloom.optional import require
from tokenloom.registry import Registry
from tokenloom.storage.atomic import storage_errors

Read = Callable[[int], bytes]
"""`read(size)` returns 1 to `size` bytes of decompressed text; b"" at the end of the file."""

Decoder = tuple[Callable[[], Any], tuple[type[Exception], ...]]
"""A factory of decompressors (like `bz2.BZ2Decompressor`), and the exceptions that they raise for damaged data."""

_CHUNK_BYTES = 64 << 10  # compressed bytes to read at once; few, because bytes after the end of a member are copied
_LZMA_BYTES = 1 << 20  # memory that the xz decompressor needs besides the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A compression format for whole files; a file consists of one or more members."""

    name: str
    suffixes: tuple[str, ...]  # in lower case
    magic: bytes  # the first bytes of a compressed file
    decoder: Callable[[int], Decoder]  # takes the maximum window size in bytes


class _MemberReader:
    """A reader that decompresses all members of a file; a file that ends inside a member is an error."""

    def __init__(self, file: BufferedReader, path: str, codec: Codec, window_bytes: int) -> None:
        self._file, self._path, self._codec, self._window_bytes = file, path, codec, window_bytes
        self._open_member, self._errors = codec.decoder(window_bytes)
        self._member: Any = None  # the decompressor of the current member
        self._unread = b""  # compressed bytes behind the end of a member
        self._text = memoryview(b"")  # decompressed text that is not returned yet
        self._is_empty = True

    def read(self, count: int) -> bytes:
        """Returns `count` bytes of decompressed text, fewer only at the end of the file."""
        parts: list[memoryview] = []
        while count and (self._text or self._advance(count)):
            parts.append(self._text[:count])
            self._text = self._text[count:]
            count -= len(parts[-1])
        return b"".join(parts)

    def _advance(self, count: int) -> bool:
        """Decompresses more text; returns False at the end of the file."""
        while not self._text:
            data = b""
            if self._member is None or self._member.needs_input:
                data, self._unread = self._unread or read_from(self._file, self._path, _CHUNK_BYTES), b""
                if not data:
                    break
            if self._member is None:
                self._is_empty = False
                if not (data := data.lstrip(b"\0")):  # padding between xz streams
                    continue
                self._member = self._open_member()
            try:
                self._text = memoryview(self._member.decompress(data, count))
            except self._errors as error:
                message = f"`{self._path}`: cannot decompress the {self._codec.name} data: {error}"
                hint = f"raise `max_window_bytes` above {self._window_bytes >> 20} MiB, or use a smaller window"
                is_too_large = "emory" in str(error)  # zstd and xz report "memory" in this case
                raise InputError(message, hint=hint if is_too_large else None) from error
            if self._member.eof:
                self._unread, self._member = self._member.unused_data, None
        if not self._text and (self._member is not None or self._is_empty):
            message = f"`{self._path}`: the {self._codec.name} data ends too early"
            raise InputError(message, hint="the file is truncated or still being written")
        return bool(self._text)


class _ZstdFrame:
    """A decompressor of one zstd frame; `decompress` always decompresses all of `data`."""

    needs_input = True

    def __init__(self, decompressor: Any) -> None:
        self._frame = decompressor.decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data)

    def decompress(self, data: bytes, _count: int) -> bytes:
        return bytes(self._frame.decompress(data))


def _gzip_decoder(_window_bytes: int) -> Decoder:
    library = require("isal.igzip_lib", extra="preprocess")
    return partial(library.IgzipDecompressor, flag=library.DECOMP_GZIP), (library.IsalError,)


def _zstd_decoder(window_bytes: int) -> Decoder:
    library = require("zstandard", extra="preprocess")
    return partial(_ZstdFrame, library.ZstdDecompressor(max_window_size=window_bytes)), (library.ZstdError,)


def _xz_decoder(window_bytes: int) -> Decoder:
    return partial(lzma.LZMADecompressor, memlimit=window_bytes + _LZMA_BYTES), (lzma.LZMAError,)


GZIP = Codec(name="gzip", suffixes=(".gz",), magic=b"\x1f\x8b", decoder=_gzip_decoder)
ZSTD = Codec(name="zstd", suffixes=(".zst", ".zstd"), magic=b"\x28\xb5\x2f\xfd", decoder=_zstd_decoder)
BZ2 = Codec(
    name="bz2",
    suffixes=(".bz2",),
    magic=b"BZh",
    decoder=lambda _window_bytes: (bz2.BZ2Decompressor, (OSError, ValueError)),
)
XZ = Codec(name="xz", suffixes=(".xz",), magic=b"\xfd7zXZ\x00", decoder=_xz_decoder)

CODECS: Registry[Codec] = Registry(
    "compression", {name: f"tokenloom.inputs.codecs:{name.upper()}" for name in ("gzip", "zstd", "bz2", "xz")}
)
"""Compressions by name."""

MAGIC_BYTES = 64
"""Number of bytes that are read from the start of a file, to detect its compression and format."""


def compression_by_suffix(suffix: str) -> str:
    """Returns the compression of files with this suffix, or "none"."""
    return next((name for name, codec in CODECS.items() if suffix.lower() in codec.suffixes), "none")


def compression_of(head: bytes) -> str:
    """Returns the compression that the first bytes of a file indicate, or "none"."""
    return next((name for name, codec in CODECS.items() if head.startswith(codec.magic)), "none")


def read_from(file: BufferedReader, path: str, count: int) -> bytes:
    """Reads up to `count` bytes of a file, without decompression."""
    with storage_errors("read", path):
        return file.read(count)


def decompressed(file: BufferedReader, path: str, compression: str, *, max_window_bytes: int = WINDOW_BYTES) -> Read:
    """Returns a function that reads decompressed text; `path` is for messages.

    The function raises `InputError` for damaged data, and for zstd and xz windows above `max_window_bytes`.
    """
    if compression == "none":
        return partial(read_from, file, path)
    return _MemberReader(file, path, CODECS[compression], max_window_bytes).read
