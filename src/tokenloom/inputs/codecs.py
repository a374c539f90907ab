"""The compressions of input files; their members (frames, streams) are decompressed one by one.

The file objects of the standard library and of `zstandard` do not suffice: those of bzip2 and xz drop the rest of a
file silently after a damaged member, that of xz has no memory limit, and that of Zstandard accepts a truncated frame.
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
"""Returns at most so many bytes of text, at least one, or b"" at the end."""

Decoder = tuple[Callable[[], Any], tuple[type[Exception], ...]]
"""Opens a member, with the methods of `bz2.BZ2Decompressor`; and its exceptions for damaged data."""

_CHUNK_BYTES = 64 << 10  # compressed; bytes behind the end of a member are copied
_LZMA_BYTES = 1 << 20  # memory of the decompressor of xz beside the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A compression of whole files, of one or more members each.

    Attributes:
        name: its name in messages.
        suffixes: suffixes of its files, in lower case.
        magic: first bytes of its files.
        decoder: takes the largest window in bytes, returns the decoder.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: bytes
    decoder: Callable[[int], Decoder]


class _MemberReader:
    """Reads members until the file ends; a file that ends inside one is an error."""

    def __init__(self, file: BufferedReader, path: str, codec: Codec, window_bytes: int) -> None:
        self._file, self._path, self._codec, self._window_bytes = file, path, codec, window_bytes
        self._open_member, self._errors = codec.decoder(window_bytes)
        self._member: Any = None  # open while inside one
        self._unread = b""  # compressed, behind the end of a member
        self._text = memoryview(b"")  # more than was asked for
        self._is_empty = True

    def read(self, count: int) -> bytes:
        """Returns `count` bytes of text; less only at the end."""
        parts: list[memoryview] = []
        while count and (self._text or self._advance(count)):
            parts.append(self._text[:count])
            self._text = self._text[count:]
            count -= len(parts[-1])
        return b"".join(parts)

    def _advance(self, count: int) -> bool:
        """Decompresses some text; whether there was any."""
        while not self._text:
            data = b""
            if self._member is None or self._member.needs_input:
                data, self._unread = self._unread or read_from(self._file, self._path, _CHUNK_BYTES), b""
                if not data:
                    break
            if self._member is None:
                self._is_empty = False
                if not (data := data.lstrip(b"\0")):  # padding, as xz has it between streams
                    continue
                self._member = self._open_member()
            try:
                self._text = memoryview(self._member.decompress(data, count))
            except self._errors as error:
                message = f"`{self._path}`: the {self._codec.name} data cannot be decompressed: {error}"
                more = f"compress it with a smaller window, or allow more than {self._window_bytes >> 20} MiB"
                is_too_large = "emory" in str(error)  # in the words of both libraries that know a limit
                raise InputError(message, hint=f"{more} with `max_window_bytes`" if is_too_large else None) from error
            if self._member.eof:
                self._unread, self._member = self._member.unused_data, None
        if not self._text and (self._member is not None or self._is_empty):
            message = f"`{self._path}`: the {self._codec.name} data ends too early"
            raise InputError(message, hint="the file is truncated or still being written")
        return bool(self._text)


class _ZstdFrame:
    """A frame of Zstandard; returns all text of some compressed bytes at once."""

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
"""Compressions by their name in messages and manifests."""

MAGIC_BYTES = 64
"""First bytes of a file to detect compression and format."""


def compression_by_suffix(suffix: str) -> str:
    """Returns the compression with this suffix; "none" if there is none."""
    return next((name for name, codec in CODECS.items() if suffix.lower() in codec.suffixes), "none")


def compression_of(head: bytes) -> str:
    """Returns the compression of a file by its first bytes; "none" if they show none."""
    return next((name for name, codec in CODECS.items() if head.startswith(codec.magic)), "none")


def read_from(file: BufferedReader, path: str, count: int) -> bytes:
    """Returns up to `count` bytes without decompressing."""
    with storage_errors("read", path):
        return file.read(count)


def decompressed(file: BufferedReader, path: str, compression: str, *, max_window_bytes: int = WINDOW_BYTES) -> Read:
    """Returns a reader of the text of a file; it raises an `InputError` for damage, else a `StorageError`.

    Args:
        file: a binary stream.
        path: path of the file, for messages.
        compression: one of `CODECS`, or "none".
        max_window_bytes: memory limit for the windows of Zstandard and xz; more is an `InputError`.
    """
    if compression == "none":
        return partial(read_from, file, path)
    return _MemberReader(file, path, CODECS[compression], max_window_bytes).read
