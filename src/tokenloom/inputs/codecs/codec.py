"""What a compression is to those that read files, how damage is worded, and files as the members they are made of.

The file objects of the standard library and of `zstandard` do not do: those of bzip2 and xz take whatever follows the
first member for the end if it cannot be read, so that damage drops the rest of a file in silence, and that of xz knows
no limit of memory; that of Zstandard takes a truncated frame for a whole one. So members (frames, streams) are read
one by one, a piece at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from io import BufferedReader
from typing import Any, Protocol

from tokenloom.errors import InputError
from tokenloom.storage.atomic import storage_errors

Read = Callable[[int], bytes]
"""Returns at most so many bytes of text, at least one, or b"" at the end."""


_CHUNK_BYTES = 32 << 10  # compressed; what is behind the end of a member is copied, and a member may have 9 bytes

Decoder = tuple[Callable[[], Any], tuple[type[Exception], ...]]
"""What opens a member, with the methods of `bz2.BZ2Decompressor`, and what that raises for a damaged one."""


class Codec(Protocol):
    """A compression of whole files, of one or more members each.

    Attributes:
        suffixes: suffixes of its files, in lower case.
        magic: first bytes that tell it.
    """

    suffixes: tuple[str, ...]
    magic: bytes

    def open(self, file: BufferedReader, path: str, *, window_bytes: int) -> Read:
        """Returns what reads the text of a file; see `decompressed`.

        Args:
            file: a binary stream.
            path: path of the file, for messages.
            window_bytes: most memory for what decompressing looks back on; more is an `InputError`.
        """


def read_from(file: BufferedReader, path: str, count: int) -> bytes:
    """Returns up to so many bytes as they are.

    Raises:
        StorageError: reading fails.
    """
    with storage_errors("read", path):
        return file.read(count)


def truncated(path: str, kind: str) -> InputError:
    """Returns the error for a file that ends within a member."""
    message = f"`{path}`: the {kind} data ends too early"
    return InputError(message, hint="the file is truncated or still being written")


def damaged(path: str, kind: str, error: Exception) -> InputError:
    """Returns the error for a member that cannot be decompressed."""
    return InputError(f"`{path}`: expected {kind} data, but it is damaged: {error}")


class MemberCodec(Codec):
    """A compression whose members are decompressed one by one.

    Attributes:
        name: name of it, for messages.
        may_be_padded: whether zeros between members mean nothing.
        too_large: how what is raised ends for a member that needs too large a window; empty if none does.
        how_to_have_less: how to compress so that it does not.
    """

    name: str
    may_be_padded: bool = False
    too_large: str = ""
    how_to_have_less: str = ""

    @abstractmethod
    def decoder(self, window_bytes: int) -> Decoder:
        """Returns what opens members within a window of so many bytes."""

    def open(self, file: BufferedReader, path: str, *, window_bytes: int) -> Read:
        """Returns what reads the text; see `Codec`."""
        return MemberReader(file, path, self, window_bytes=window_bytes).read


class MemberReader:
    """Reads members (frames, streams) until the file ends; notices when it ends inside one.

    Memory: what is asked for at once, and the window of a member.
    """

    def __init__(self, file: BufferedReader, path: str, codec: MemberCodec, *, window_bytes: int) -> None:
        self._file = file
        self._path = path
        self._codec = codec
        self._window_bytes = window_bytes
        self._open_member, self._errors = codec.decoder(window_bytes)
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
                data = read_from(self._file, self._path, _CHUNK_BYTES)
            if self._member is None and self._codec.may_be_padded:
                data = data.lstrip(b"\0") or (b"" if not data else self._after_padding())
            if not data:
                if self._member is not None or self._is_empty:
                    raise truncated(self._path, self._codec.name)
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
        """Returns what follows the zeros that may stand between members."""
        while data := read_from(self._file, self._path, _CHUNK_BYTES):
            if data := data.lstrip(b"\0"):
                break
        return data

    def _refused(self, error: Exception) -> InputError:
        name = self._codec.name
        if not self._codec.too_large or not str(error).endswith(self._codec.too_large):
            return damaged(self._path, name, error)
        limit = f"{self._window_bytes >> 20} MiB"
        message = f"`{self._path}`: expected a {name} window of at most {limit}, found a larger one"
        hint = f"compress it anew {self._codec.how_to_have_less}; or allow more with `max_window_bytes`"
        return InputError(message, hint=hint)
