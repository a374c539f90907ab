"""The messages of Arrow files and streams, from their metadata: what reading them will take, before anything is.

`pyarrow` allocates what a message says, and what is written before each compressed buffer: 300 bytes can ask for 2^62,
and 30 KiB really come to 1 GiB. So the metadata of each message is looked at here first, which costs 15 microseconds:
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.inputs.formats.flat_tables import FlatTable

ReadAt = Callable[[int, int], bytes]
"""Returns up to so many bytes of a body from an offset on: (length, offset)."""

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
_CONTINUES = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # in files of 2020, which `pyarrow` still reads
_PIECE_BYTES = 64 << 20  # read at once, so that no more is allocated than there is
_ROW_BYTES = 8
"""Fewest bytes of a row, once somebody looks at it; a column of nulls takes nothing, and may claim 2^62 of them."""


@dataclass(slots=True, kw_only=True)
class MessageLimits:
    """Refuses messages that take too much.

    Attributes:
        max_bytes: most bytes of the metadata or the decoded body of a message, and of all dictionaries together.
        dictionary_bytes: sizes of the dictionaries so far, by their ids.
    """

    max_bytes: int
    dictionary_bytes: dict[int, int] = field(default_factory=dict)

    def check_length(self, what: str, num_bytes: int) -> None:
        """Refuses what takes too many bytes.

        Raises:
            InputError: it does.
        """
        if num_bytes < 0:
            message = f"{what} of {num_bytes} bytes"
            raise _damaged(message)
        if num_bytes > self.max_bytes:
            message = f"{what} takes {num_bytes} bytes, more than {self.max_bytes}"
            raise InputError(message, hint="write smaller record batches, or allow more with `memory_bytes`")

    def check_body(self, metadata: bytes, read: ReadAt) -> None:
        """Refuses a message whose body comes to too much.

        Args:
            metadata: metadata of the message.
            read: its body.

        Raises:
            InputError: it does, or the message is damaged.
        """
        with damage_worded():
            message = FlatTable.root(metadata)
            kind = message.number(1, "B")
            records = message.table(2)
            if kind not in (_DICTIONARY, _RECORDS) or records is None:
                return
            length = message.number(3, "q")
            dictionary, is_delta = records.number(0, "q"), bool(records.number(2, "B"))
            if kind == _DICTIONARY and (records := records.table(1)) is None:
                return
            num_bytes = _decoded_bytes(metadata, records, length, read)
            num_rows = records.number(0, "q")
        what = "a record batch" if kind == _RECORDS else "a dictionary"
        self.check_length(what, num_bytes)
        if not 0 <= num_rows * _ROW_BYTES <= self.max_bytes:
            message_ = f"{what} has {num_rows} rows, more than {self.max_bytes // _ROW_BYTES}"
            raise InputError(message_, hint="write smaller record batches, or allow more with `memory_bytes`")
        if kind == _DICTIONARY:
            before = self.dictionary_bytes.get(dictionary, 0) if is_delta else 0
            self.dictionary_bytes[dictionary] = before + num_bytes
            self.check_length("the sum of all dictionaries", sum(self.dictionary_bytes.values()))


def _decoded_bytes(metadata: bytes, records: FlatTable, body_bytes: int, read: ReadAt) -> int:
    buffers = records.pairs(2)
    offsets, lengths = buffers[:, 0], buffers[:, 1]
    if ((offsets < 0) | (lengths < 0) | (offsets > body_bytes) | (lengths > body_bytes - offsets)).any():
        message = f"a buffer outside the {body_bytes} bytes of its message"
        raise _damaged(message)
    sizes = lengths.tolist()
    if records.table(3) is None and _OLD_COMPRESSION not in metadata:
        return sum(sizes)
    decoded = 0
    for offset, size in zip(offsets.tolist(), sizes, strict=True):
        if size:
            (claimed,) = struct.unpack("<q", read(8, offset))
            if claimed < -1:
                message = f"a compressed buffer of {claimed} bytes"
                raise _damaged(message)
            decoded += size if claimed == -1 else claimed  # -1: it is not compressed
    return decoded


class CheckedStream(io.RawIOBase):
    """A stream of messages whose claims are checked before it passes them on: memory, the message that is read.

    Args:
        file: a binary stream, at its first message.
        limits: limits of the messages.
    """

    def __init__(self, file: Any, limits: MessageLimits) -> None:
        super().__init__()
        self._file = file
        self._limits = limits
        self._parts: list[bytes] = []  # of the message, not passed on
        self._position = 0
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> bytes:
        """Returns `count` bytes, fewer at the end; a body as a whole is not copied."""
        found: list[bytes] = []
        while count > 0 and (self._parts or self._fill()):
            part = self._parts.pop(0)
            if len(part) > count:
                self._parts.insert(0, part[count:])
                part = part[:count]
            found.append(part)
            count -= len(part)
        data = b"".join(found) if len(found) != 1 else found[0]
        self._position += len(data)
        return data

    def _fill(self) -> bool:
        """Reads the next message; returns whether there is one, or its beginning."""
        if self._has_ended:
            return False
        prefix = self._exactly(4)
        if prefix == struct.pack("<I", _CONTINUES):
            prefix += self._exactly(4)
        self._parts = [prefix] if prefix else []
        length = int.from_bytes(prefix[-4:], "little", signed=True)
        if len(prefix) not in (4, 8) or not length:  # truncated, or the end mark
            self._has_ended = True
            return bool(prefix)
        self._limits.check_length("the metadata of a message", length)
        metadata = self._exactly(length)
        self._parts.append(metadata)
        if len(metadata) < length:
            self._has_ended = True
            return True
        with damage_worded():
            num_bytes = FlatTable.root(metadata).number(3, "q")
        self._limits.check_length("the body of a message", num_bytes)
        body = self._exactly(num_bytes)
        if len(body) < num_bytes:
            self._has_ended = True  # the library will say so
        else:
            view = memoryview(body)
            self._limits.check_body(metadata, lambda count, at: bytes(view[at : at + count]))
        if body:
            self._parts.append(body)
        return True

    def _exactly(self, count: int) -> bytes:
        """Returns `count` bytes, fewer at the end of the file."""
        parts: list[bytes] = []
        while count > 0 and (part := self._file.read(min(count, _PIECE_BYTES))):
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class HeldRange(io.RawIOBase):
    """A file far away, of which the message that is looked at is held, as far as it is needed, not to be asked twice.

    Args:
        file: a `pyarrow.NativeFile`.
        num_bytes: its size.
    """

    def __init__(self, file: Any, *, num_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._num_bytes = num_bytes
        self._position = 0
        self._start = 0
        self._data = b""
        self._place = (0, 0, 0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> bytes:
        """Returns `count` bytes, fewer at the end."""
        data = self._held(count, self._position)
        if data is None:
            data = self._file.read_at(count, self._position)
        self._position += len(data)
        return data

    def choose(self, place: NDArray[np.int64]) -> None:
        """Lets go of the message before, for another one: a row of `FileBlocks`."""
        self._place = tuple(place.tolist())
        self._data = b""

    def read_at(self, count: int, at: int) -> bytes:
        """Returns `count` bytes of the message, of which the metadata is read first, and with any of the body, all."""
        offset, length, body_bytes = self._place
        if (data := self._held(count, at)) is None:
            is_metadata = at + count <= offset + length
            self._data = self._file.read_at(length if is_metadata else length + body_bytes, offset)
            self._start = offset
            data = self._held(count, at)
        return data or b""

    def _held(self, count: int, at: int) -> bytes | None:
        start = at - self._start
        if start < 0 or count < 0 or start + count > len(self._data):
            return None
        return bytes(memoryview(self._data)[start : start + count])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlocks:
    """Where the messages of a file lie.

    Attributes:
        dictionaries, records: int64[number of messages, 3]: offset, bytes of the metadata, bytes of the body.
    """

    dictionaries: NDArray[np.int64]
    records: NDArray[np.int64]


def file_blocks(read: ReadAt, num_bytes: int) -> FileBlocks:
    """Returns where the messages of a file lie, as its footer says.

    Args:
        read: the file.
        num_bytes: its size.

    Raises:
        InputError: they do not lie in it one behind the other.
    """
    with damage_worded():
        (length,) = struct.unpack("<i", read(4, num_bytes - len(FILE_MAGIC) - 4))
        start = num_bytes - len(FILE_MAGIC) - 4 - length
        if not 0 < length <= num_bytes or start < 0:
            message = f"a footer of {length} bytes"
            raise _damaged(message)
        footer = FlatTable.root(read(length, start))
        dictionaries, records = footer.blocks(2), footer.blocks(3)
    every = np.concatenate([dictionaries, records])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.concatenate([np.zeros(1, dtype=np.int64), every[:, 0] + every[:, 1] + every[:, 2]])
    if (every < 0).any() or (every > num_bytes).any() or (ends[:-1] > every[:, 0]).any() or ends[-1] > start:
        message = "messages that overlap, or lie outside the file"
        raise _damaged(message)
    return FileBlocks(dictionaries=dictionaries, records=records)


def check_block(read: ReadAt, place: NDArray[np.int64], limits: MessageLimits) -> None:
    """Refuses a message of a file that takes too much, or more than its place.

    Args:
        read: the file.
        place: a row of `FileBlocks`.
        limits: limits of the messages.

    Raises:
        InputError: it does.
    """
    offset, length, body_bytes = place.tolist()
    limits.check_length("the metadata of a message", length)
    limits.check_length("the body of a message", body_bytes)
    metadata = read(length, offset)
    with damage_worded():
        metadata = metadata[8 if metadata[:4] == struct.pack("<I", _CONTINUES) else 4 :]
        claimed = FlatTable.root(metadata).number(3, "q")
        if not 0 <= claimed <= body_bytes:
            message = f"a message of {claimed} bytes where its file has {body_bytes} for it"
            raise _damaged(message)
    limits.check_body(metadata, lambda count, at: read(count, offset + length + at))


def _damaged(what: str) -> InputError:
    return InputError(f"found {what}", hint="the file is damaged")


@contextmanager
def damage_worded() -> Iterator[None]:
    """Turns what reading damaged metadata raises into an `InputError`."""
    try:
        yield
    except (struct.error, IndexError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        message = f"metadata that cannot be read ({error})"
        raise _damaged(message) from error
