"""Local files: read through a memory map or with `pread`, and copied by the operating system."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import reserve, start_writing_back
from tokenloom.errors import StorageError
from tokenloom.kernels.storage import map_file as map_with_facts
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.versions import FileVersion, check_version, open_regular, version_of

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Ranges = tuple[Integers, Integers]

_PIECE_BYTES = 512

MAP_LESS = "raise vm.max_map_count, merge datasets, or set `mmap_bin_files=False`"

_COPY_BYTES = 64 << 20  # bytes per system call: large enough to be cheap, small enough to be interrupted
_BUFFER_BYTES = 1 << 20
_WRITE_BYTES = 8 << 20

_REFUSALS = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
"""Error codes if `copy_file_range` is not supported by a filesystem, or not between two filesystems."""


class ByteSource(Protocol):
    """Random access to the bytes of one file or object. Thread-safe and fork-safe."""

    @property
    def num_bytes(self) -> int:
        """The size in bytes."""

    @property
    def mapped(self) -> Bytes | None:
        """All bytes as a read-only view, uint8[num_bytes]; None if the source is not mapped into memory."""
        return None

    def read(self, offset: int, length: int) -> Bytes:
        """Returns bytes [offset, offset + length) as uint8[length]; a read-only view if mapped, else a copy."""

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        """Yields the bytes of many ranges, in argument order; ranges of objects are fetched concurrently."""
        return map(self.read, offsets, lengths)


def map_file(path: str) -> Bytes:
    """Maps a file; returns a read-only view, uint8[size]. The view keeps the mapping alive, and needs no descriptor."""
    return map_version(path)[0]


def map_version(path: str) -> tuple[Bytes, FileVersion]:
    """Maps a file, as `map_file` does; returns the view and the version of the file."""
    try:  # outside of `storage_errors`, as entering this context manager takes longer than mapping
        data, facts = map_with_facts(path)
    except OSError as error:
        with storage_errors("open", path):
            if error.errno == errno.ENODEV:  # cannot be mapped: raises a clearer error if the file is not regular
                version_of(path)
            if error.errno == errno.ENOMEM:
                message = f"cannot map `{path}`: {error.strerror}"
                raise StorageError(message, hint=f"too many mappings: {MAP_LESS}") from error
            raise
    return data, FileVersion(*facts)


class MappedFile(ByteSource):
    """A file that is mapped into memory on the first read or, with `at_once`, when opened. Reads are views.

    All processes share the page cache. Mapping raises a `ChangedFileError` if the file was replaced after opening. Once
    mapped, the file may be renamed or replaced; a truncated file reads as zeros, which a `kernels.Watch` detects.
    """

    def __init__(self, path: str, *, at_once: bool = False) -> None:
        self.path = path
        self.version: FileVersion
        self._bytes: Bytes | None
        self._bytes, self.version = map_version(path) if at_once else (None, version_of(path))

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
            raise out_of_range(self.path, offset, length, self.num_bytes)
        return self.mapped[offset : offset + length]


class _Handle:
    """A file descriptor that is closed when this object is deleted."""

    def __init__(self, path: str) -> None:
        # O_NONBLOCK: opening must not block if the path is now a pipe; the caller checks the version.
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_MOST_HANDLES = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Maximum number of files that stay open between reads, far below the usual limit of 1,024 descriptors."""

_HANDLES: dict[object, _Handle] = {}
"""Open files by the key of their `PositionalFile`, the most recently used last. Finalizers change this dictionary, so
it has no lock: two threads may both open a file, and then one of the two handles is dropped."""


class PositionalFile(ByteSource):
    """A file read with `pread`, for filesystems where mapping is slow, not supported or limited.

    A run may read more files than a process may have open, so the descriptor may be closed between reads. The next read
    then opens the file again, and raises a `ChangedFileError` if the file was replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._key = object()
        self.version: FileVersion = version_of(path)

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or (stop := offset + length) > self.num_bytes:
            raise out_of_range(self.path, offset, length, self.num_bytes)
        data = np.empty(length, dtype=np.uint8)
        view, done = data.data, 0
        with storage_errors("read", self.path):
            handle = self._handle()
            while done < length:  # one call may return fewer bytes
                count = os.preadv(handle.descriptor, [view[done:]], offset + done)
                if count == 0:
                    message = f"`{self.path}`: ended at byte {offset + done} while reading bytes [{offset}, {stop})"
                    raise StorageError(message, hint="do not truncate the file while it is open")
                done += count
        return data

    def _handle(self) -> _Handle:
        if (handle := _HANDLES.pop(self._key, None)) is None:
            handle = _Handle(self.path)
            self.version.check(FileVersion.of(os.fstat(handle.descriptor)), self.path)
        _HANDLES[self._key] = handle
        while len(_HANDLES) > _MOST_HANDLES:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread removed the handle
                del _HANDLES[next(iter(_HANDLES))]
        return handle

    def __del__(self) -> None:
        if hasattr(self, "_key"):
            _HANDLES.pop(self._key, None)


def out_of_range(path: str, offset: int, length: int, num_bytes: int) -> StorageError:
    return StorageError(f"bytes [{offset}, {offset + length}) out of range: `{path}` has {num_bytes} bytes")


def spread_evenly(count: int, most: int) -> Integers:
    """Returns evenly spaced ascending integers from 0 to `count` - 1: int64[min(count, most)]."""
    return np.linspace(0, count - 1, num=min(count, most), dtype=np.int64)


def sampled_hash(source: ByteSource | Bytes, *, num_pieces: int = 32) -> str:
    """Returns the SHA-256 of `num_pieces` evenly spread pieces of 512 bytes, or of all bytes of a smaller source."""
    num_bytes = len(source) if isinstance(source, np.ndarray) else source.num_bytes
    offsets, lengths = [0], [num_bytes]
    if num_bytes > num_pieces * _PIECE_BYTES:
        last = num_bytes - _PIECE_BYTES
        offsets = [last * piece // (num_pieces - 1) for piece in range(num_pieces)]
        lengths = [_PIECE_BYTES] * num_pieces
    if not isinstance(source, np.ndarray):
        if source.mapped is None:
            return hashlib.sha256(b"".join(each.data for each in source.read_many(offsets, lengths))).hexdigest()
        source = source.mapped
    view = source.data  # slicing a view is four times as fast as slicing an array; a large run needs 130,000 slices
    pieces = [view[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def copy_range(
    path: str,
    target: int,
    *,
    offset: int,
    length: int,
    target_path: str,
    version: FileVersion | None = None,
    write_back: bool = False,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Copies bytes [offset, offset + length) of the file `path` to the current position of the descriptor `target`.

    Copies in the kernel or, where that is not supported, through a buffer. `ChangedFileError` if the version of the
    source, before or after the copy, is not `version`. `target_path` is for messages. `write_back` starts writing to
    disk at once, so that a later `fsync` takes less time. `advance` is called with the number of bytes of each step.
    """
    with storage_errors("open", path):
        source = open_regular(path)
    try:
        check_version(source, version, path)
        with storage_errors(f"copy `{path}` to", target_path):
            copied, start = 0, os.lseek(target, 0, os.SEEK_CUR)
            reserve(target, start, length)  # ext4 takes a fifth longer if it has to allocate blocks during the copy
            while copied < length and (count := _copy_some(source, target, offset + copied, length - copied)):
                if write_back:
                    start_writing_back(target, start + copied, count)
                copied += count
                if advance is not None:
                    advance(count)
        if copied == length:
            check_version(source, version, path)
    finally:
        os.close(source)
    if copied != length:
        message = f"`{path}`: ended at byte {offset + copied} while copying bytes [{offset}, {offset + length})"
        raise StorageError(message, hint="do not truncate the file while it is read")


def _copy_some(source: int, target: int, offset: int, most: int) -> int:
    """Copies up to `most` bytes from `offset`; returns the number of bytes copied, 0 only at the end of the source."""
    try:
        if count := os.copy_file_range(source, target, min(_COPY_BYTES, most), offset):
            return count
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
    data = memoryview(os.pread(source, min(most, _BUFFER_BYTES), offset))  # the kernel cannot copy here
    count = len(data)
    while data:  # on a nearly full disk, `write` may write only a part
        data = data[os.write(target, data) :]
    return count


def write_durably(target: IO[bytes], *parts: memoryview) -> None:
    """Writes all parts into an empty file and syncs it; the disk starts to write before all parts are copied."""
    offset = 0
    for part in parts:
        for start in range(0, len(part), _WRITE_BYTES):
            piece = part[start : start + _WRITE_BYTES]
            target.write(piece)
            target.flush()
            start_writing_back(target.fileno(), offset, len(piece))
            offset += len(piece)
    os.fsync(target.fileno())


def first_difference(path: str, contents: Iterable[memoryview]) -> int | None:
    """Returns the first byte offset where a synced file differs from `contents`, or None; reads the disk, no cache."""
    offset = 0
    with storage_errors("read", path), open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for piece in contents:
            wanted = np.frombuffer(piece, dtype=np.uint8)
            found = np.frombuffer(file.read(len(wanted)), dtype=np.uint8)
            if len(found) < len(wanted):
                return offset + len(found)
            if len(wrong := np.flatnonzero(found != wanted)):
                return offset + int(wrong[0])
            offset += len(wanted)
    return None
