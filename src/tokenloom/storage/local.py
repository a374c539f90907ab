"""Local files, read through a memory map or by position."""

from __future__ import annotations

import mmap
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import storage_errors

Bytes = NDArray[np.uint8]


class ByteSource(Protocol):
    """Random access to the bytes of one object.

    Safe from several threads and after a fork; not picklable (owners re-open from their own arguments).
    """

    @property
    def num_bytes(self) -> int:
        """The size of the object."""

    @property
    def mapped(self) -> Bytes | None:
        """All bytes as a read-only view: uint8[num_bytes], or None when they are not mapped into memory."""

    def read(self, offset: int, length: int) -> Bytes:
        """Returns bytes [offset, offset + length) as uint8[length]: a view if mapped, else a fresh array."""


def file_size(path: str) -> int:
    """Returns the size of a file in bytes."""
    with storage_errors("open", path):
        return os.stat(path).st_size


def map_file(path: str) -> Bytes:
    """Returns a read-only view of the whole file: uint8[size]. The map lives as long as any view of it."""
    with storage_errors("open", path), open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


class MappedFile:
    """A file mapped into memory: reads are views, and the page cache is shared by all processes of the node."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._bytes = map_file(path)

    @property
    def num_bytes(self) -> int:
        return len(self._bytes)

    @property
    def mapped(self) -> Bytes | None:
        return self._bytes

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > len(self._bytes):
            raise _outside(self.path, offset, length, len(self._bytes))
        return self._bytes[offset : offset + length]


class PositionalFile:
    """A file read with `pread`: no mapping, for filesystems where mapping is slow, refused or limited."""

    def __init__(self, path: str) -> None:
        self.path = path
        with storage_errors("open", path):
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._num_bytes = os.fstat(self._handle).st_size

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def mapped(self) -> Bytes | None:
        return None

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > self._num_bytes:
            raise _outside(self.path, offset, length, self._num_bytes)
        data = np.empty(length, dtype=np.uint8)
        view = data.data
        done = 0
        with storage_errors("read", self.path):
            while done < length:  # one call may return less than asked for
                count = os.preadv(self._handle, [view[done:]], offset + done)
                if count == 0:
                    message = (
                        f"`{self.path}` ended at byte {offset + done} while bytes "
                        f"[{offset}, {offset + length}) were read"
                    )
                    raise StorageError(message, hint="the file was truncated while it was open")
                done += count
        return data

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


def _outside(path: str, offset: int, length: int, num_bytes: int) -> StorageError:
    return StorageError(f"bytes [{offset}, {offset + length}) of `{path}` were asked for, but it has {num_bytes} bytes")
