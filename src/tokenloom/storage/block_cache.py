"""Blocks of objects in a folder that all processes of a node share, within a budget.

A block is a file under a hashed name: its bytes and their CRC-32, so that what a loss of power left behind is not
believed. It is mapped, and so stays readable when it is evicted. Two locks, which the system releases when their holder
dies:

- who fills a block holds the part file it grows in; others that want the block wait there, so it is fetched once;
- who makes room, or names a block that is filled, holds the folder, so that the budget counts all blocks, those that
  are still being filled included.
"""

from __future__ import annotations

import fcntl
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tokenloom import kernels
from tokenloom.errors import CacheNotWrittenWarning
from tokenloom.storage.local import Bytes
from tokenloom.storage.locks import close_lock, filling, open_for_lock, write_at

_CHECKSUM = struct.Struct("<I")
_LOCK = "lock"


class BlockCache:
    """Keeps blocks in a folder; safe from several threads and processes.

    Args:
        folder: exists; on a file system of this node, where `flock` works.
        budget_bytes: most bytes of all files in it together.
    """

    def __init__(self, folder: str, *, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._has_warned = False

    def obtain(self, name: str, num_bytes: int, fetch: Callable[[], Bytes]) -> tuple[Bytes, bool] | None:
        """Returns a block and whether it was here, fetched if it was not; None if the cache cannot take it.

        Args:
            name: name of the block, one for one content.
            num_bytes: its size.
            fetch: returns its bytes; called by one process at a time, and raises what it likes.
        """
        while True:
            path = os.path.join(self._folder, f"{name}.block")
            try:
                if (found := _open(path, num_bytes)) is not None:
                    return found, True
                with filling(path) as part:
                    if part is None:
                        continue
                    descriptor, part_path = part
                    if not self._reserve(descriptor, num_bytes + _CHECKSUM.size):
                        return None
                    fetched = fetch()
                    write_at(descriptor, fetched.data, 0)
                    write_at(descriptor, memoryview(_CHECKSUM.pack(zlib.crc32(fetched.data))), num_bytes)
                    data, _ = kernels.map_file(part_path)
                    with self._counted():
                        os.rename(part_path, path)
                    return data[:num_bytes], False
            except OSError as error:
                if error.errno is None:  # ours, from `fetch`
                    raise
                self._warn(error)
                return None

    def _reserve(self, descriptor: int, num_bytes: int) -> bool:
        """Makes room and gives the file its size; False if what is being filled leaves no room."""
        with self._counted():
            files = self._files()
            excess = sum(status.st_size for status in files.values()) + num_bytes - self._budget_bytes
            for path, status in sorted(files.items(), key=lambda each: each[1].st_mtime):
                if excess <= 0:
                    break
                if status.st_size and _evict(path):
                    excess -= status.st_size
            if excess > 0:
                return False
            os.posix_fallocate(descriptor, 0, num_bytes)
            return True

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Holds the folder; without it, a file that is renamed while others list the files is not in their list."""
        lock = open_for_lock(os.path.join(self._folder, _LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            close_lock(lock)

    def _files(self) -> dict[str, os.stat_result]:
        """Returns all blocks and parts with what the system knows of them."""
        found = {}
        for entry in os.scandir(self._folder):
            if entry.name != _LOCK:
                with suppress(FileNotFoundError):  # removed while we look
                    found[entry.path] = entry.stat(follow_symlinks=False)
        return found

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"blocks of object storage are not kept in `{self._folder}`: {error.strerror or error}; "
                "reads go on without the cache",
                CacheNotWrittenWarning,
                stacklevel=2,
            )


def _open(path: str, num_bytes: int) -> Bytes | None:
    """Returns the bytes of a block that is there, which is used now; one that is damaged is removed."""
    try:
        data, _ = kernels.map_file(path)
        if len(data) == num_bytes + _CHECKSUM.size:
            content = data[:num_bytes]
            if _CHECKSUM.unpack(data[num_bytes:].tobytes())[0] == zlib.crc32(content.data):
                os.utime(path)
                return content
        os.unlink(path)
    except FileNotFoundError:  # or evicted meanwhile
        pass
    return None


def _evict(path: str) -> bool:
    """Removes a file unless somebody fills it."""
    try:
        descriptor = open_for_lock(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False
    finally:
        close_lock(descriptor)
    return True
