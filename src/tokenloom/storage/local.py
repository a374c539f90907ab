"""Local files, read through a memory map or by position."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom import kernels
from tokenloom.errors import StorageError
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.versions import FileVersion, version_of

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

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        """Yields many ranges, in their order, each as `read` does; fetched at the same time where that helps."""


def map_file(path: str) -> Bytes:
    """Returns a read-only view of the whole file, uint8[size]; holds no descriptor, lives as long as any view of it."""
    return map_version(path)[0]


def map_version(path: str) -> tuple[Bytes, FileVersion]:
    """Returns the same, and which file it is: that of the very descriptor that was mapped.

    Raises:
        StorageError: there is no such file, it is not a regular one, or it cannot be mapped.
    """
    try:  # entering a context takes longer than mapping
        data, facts = kernels.map_file(path)
    except OSError as error:
        with storage_errors("open", path):
            if error.errno == errno.ENODEV:  # the kernel's word for what is no regular file, or cannot be mapped
                version_of(path)
            if error.errno == errno.ENOMEM:
                message = f"cannot map `{path}`: {error.strerror}"
                hint = "too many mappings: raise vm.max_map_count, merge datasets, or set `mmap_bin_files=False`"
                raise StorageError(message, hint=hint) from error
            raise
    return data, FileVersion(*facts)


class MappedFile:
    """A file mapped into memory when it is first read: reads are views, and all processes share the page cache.

    What is mapped is the file that was there when this was made, or reading is a `ChangedFileError`. Once it is mapped,
    a file that takes its name changes nothing. If it is truncated, zeros are read, which a `kernels.Watch` finds out.

    Args:
        path: path of the file.
        at_once: map it now, which takes no look at it before.

    Attributes:
        version: which file it is.
    """

    def __init__(self, path: str, *, at_once: bool = False) -> None:
        self.path = path
        self.version: FileVersion
        self._bytes: Bytes | None = None
        if at_once:
            self._bytes, self.version = map_version(path)
        else:
            self.version = version_of(path)

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    @property
    def mapped(self) -> Bytes:
        if self._bytes is None:
            data, found = map_version(self.path)
            self.version.check(found, self.path)
            self._bytes = data
        return self._bytes

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > self.num_bytes:
            raise outside(self.path, offset, length, self.num_bytes)
        return self.mapped[offset : offset + length]

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        return map(self.read, offsets, lengths)


class _Handle:
    """An open file, which is closed when its last user lets it go."""

    def __init__(self, path: str) -> None:
        # A pipe that took the name of a file must not be waited for; its user looks what was opened.
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_MOST_HANDLES = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Files that are kept open for their next reader: far below the limit of descriptors, usually 1024."""

_HANDLES: dict[object, _Handle] = {}
"""By the key of their `PositionalFile`, the one used last at the end. Without a lock, because finalizers use it, which
Python runs in the middle of anything: two threads that meet may open a file twice, and one handle is let go."""


class PositionalFile:
    """A file read with `pread`: no mapping, for filesystems where mapping is slow, refused or limited.

    Its descriptor may be closed between reads, because a run reads more files than a process may have open; what is
    opened again is the same file, or reading is a `ChangedFileError`.

    Attributes:
        version: which file it is.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._key = object()
        self.version: FileVersion = version_of(path)

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    @property
    def mapped(self) -> Bytes | None:
        return None

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > self.num_bytes:
            raise outside(self.path, offset, length, self.num_bytes)
        data = np.empty(length, dtype=np.uint8)
        view = data.data
        done = 0
        with storage_errors("read", self.path):
            handle = self._handle()
            while done < length:  # one call may return less than asked for
                count = os.preadv(handle.descriptor, [view[done:]], offset + done)
                if count == 0:
                    message = (
                        f"`{self.path}` ended at byte {offset + done} while bytes "
                        f"[{offset}, {offset + length}) were read"
                    )
                    raise StorageError(message, hint="the file was truncated while it was open")
                done += count
        return data

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        return map(self.read, offsets, lengths)

    def _handle(self) -> _Handle:
        if (handle := _HANDLES.pop(self._key, None)) is None:
            handle = _Handle(self.path)
            self.version.check(FileVersion.of(os.fstat(handle.descriptor)), self.path)
        _HANDLES[self._key] = handle
        while len(_HANDLES) > _MOST_HANDLES:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread does the same
                del _HANDLES[next(iter(_HANDLES))]
        return handle

    def __del__(self) -> None:
        if hasattr(self, "_key"):
            _HANDLES.pop(self._key, None)


def outside(path: str, offset: int, length: int, num_bytes: int) -> StorageError:
    """Returns the error for a read beyond the end."""
    return StorageError(f"bytes [{offset}, {offset + length}) of `{path}` were asked for, but it has {num_bytes} bytes")
