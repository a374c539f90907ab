"""Bytes from one file to another without passing through this process, where the system can; and onto the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import IO

import numpy as np

from tokenloom import kernels
from tokenloom.errors import StorageError
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.versions import FileVersion, check_version, open_regular

_STEP_BYTES = 64 << 20
"""Bytes per call: large enough to cost nothing, small enough to be interrupted, and to begin writing back behind it."""

_BUFFER_BYTES = 1 << 20
_WRITE_BYTES = 8 << 20

_REFUSALS = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
"""What filesystems answer that cannot copy in the kernel, or not to each other."""


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
    """Copies bytes [offset, offset + length) of a file to the end of another, where its descriptor stands.

    By `copy_file_range`, which some filesystems do without copying at all; else through a buffer.

    Args:
        path: path of the source.
        target: descriptor, open for writing.
        offset: offset of the first byte.
        length: how many.
        target_path: path of the target, for messages.
        version: version that the source must have, before and after.
        write_back: begin to write to the disk at once, so that an `fsync` afterwards has little left to do.
        advance: called with the bytes copied since the last call.

    Raises:
        StorageError: reading or writing fails, or the source is too short, or another file.
    """
    with storage_errors("open", path):
        source = open_regular(path)
    try:
        check_version(source, version, path)
        with storage_errors(f"copy `{path}` to", target_path):
            copied = _copy(source, target, offset, length, write_back=write_back, advance=advance)
        if copied == length:
            check_version(source, version, path)
    finally:
        os.close(source)
    if copied != length:
        message = f"`{path}` ended at byte {offset + copied} while bytes [{offset}, {offset + length}) were copied"
        raise StorageError(message, hint="the file was truncated while it was read")


def write_durably(target: IO[bytes], *parts: memoryview) -> None:
    """Fills an empty file, and waits until it is on the disk, which begins to write while bytes are copied."""
    offset = 0
    for part in parts:
        for start in range(0, len(part), _WRITE_BYTES):
            piece = part[start : start + _WRITE_BYTES]
            target.write(piece)
            target.flush()
            kernels.start_writing_back(target.fileno(), offset, len(piece))
            offset += len(piece)
    os.fsync(target.fileno())


def first_difference(path: str, contents: Iterable[memoryview]) -> int | None:
    """Returns where a file first differs from what it should hold; None if it does not.

    What is cached of the file is let go first, so that its bytes come from the disk.

    Args:
        path: path of the file; its bytes must be durable.
        contents: what it should hold from the start on, in pieces.
    """
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


def _copy(
    source: int, target: int, offset: int, length: int, *, write_back: bool, advance: Callable[[int], None] | None
) -> int:
    """Returns the bytes copied: fewer than asked for only at the end of the source."""
    copied, is_in_kernel = 0, True
    start = os.lseek(target, 0, os.SEEK_CUR)
    kernels.reserve(target, start, length)  # ext4 takes a fifth longer where it has to find blocks as it goes
    while copied < length:
        if is_in_kernel:
            count = 0
            try:
                count = os.copy_file_range(source, target, min(_STEP_BYTES, length - copied), offset + copied)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
            is_in_kernel = count > 0  # else it was refused, or nothing came, as from some special filesystems
        if not is_in_kernel:
            data = memoryview(os.pread(source, min(length - copied, _BUFFER_BYTES), offset + copied))
            if (count := len(data)) == 0:
                break
            while data:  # a disk that fills up takes a part
                data = data[os.write(target, data) :]
        if write_back:
            kernels.start_writing_back(target, start + copied, count)
        copied += count
        if advance is not None:
            advance(count)
    return copied
