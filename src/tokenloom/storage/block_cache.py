"""Blocks of objects in a folder that all processes of a node share, within a budget.

A block is a file under a hashed name: its bytes and their CRC-32, so that what a loss of power left behind is not
believed. Three locks, all of which the system releases when their holder dies:

- who fills a block holds the part file it grows in; others that want the block wait there, so it is fetched once;
- who needs a block holds it shared, from its announcement to its last use; what somebody holds is not evicted;
- who makes room, or names a block that is filled, holds the folder, so that the budget counts all blocks, those that
  are still being filled included.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tokenloom import kernels
from tokenloom.errors import CacheNotWrittenWarning
from tokenloom.storage.local import Bytes
from tokenloom.storage.locks import close_lock, filling, is_file_at, open_for_lock, write_at

_CHECKSUM = struct.Struct("<I")
_LOCK = "lock"
_PAST = 10 * 365 * 86400.0
"""Seconds by which a block ages with its last announced use: it goes before all that may still be used."""


@dataclass(slots=True)
class Block:
    """A cached block that is held; `bytes` stays valid after `release`."""

    bytes: Bytes
    was_cached: bool
    _descriptor: int

    def release(self, *, finished: bool = False) -> None:
        """Lets others evict it; `finished` says that it will not be used again as far as is known."""
        if finished:
            then = time.time() - _PAST
            with suppress(OSError):
                os.utime(self._descriptor, (then, then))
        close_lock(self._descriptor)


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

    def obtain(self, name: str, num_bytes: int, fetch: Callable[[], Bytes]) -> Block | None:
        """Returns a block, held; fetched if it is not here. None if the cache is full of held blocks or unwritable.

        Args:
            name: name of the block, one for one content.
            num_bytes: its size.
            fetch: returns its bytes; called by one process at a time, and raises what it likes.
        """
        while True:
            path = os.path.join(self._folder, f"{name}.block")
            if (block := _open(path, num_bytes, was_cached=True)) is not None:
                return block
            try:
                with filling(path) as part:
                    if part is None:
                        continue
                    descriptor, part_path = part
                    if not self._reserve(descriptor, num_bytes + _CHECKSUM.size):
                        return None
                    data = fetch()
                    write_at(descriptor, data.data, 0)
                    write_at(descriptor, memoryview(_CHECKSUM.pack(zlib.crc32(data.data))), num_bytes)
                    with self._counted():
                        os.rename(part_path, path)
            except OSError as error:
                if error.errno is None:  # ours, from `fetch`
                    raise
                self._warn(error)
                return None
            if (block := _open(path, num_bytes, was_cached=False)) is not None:
                return block

    def _reserve(self, descriptor: int, num_bytes: int) -> bool:
        """Makes room and gives the file its size; False if what is held leaves no room."""
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


def _open(path: str, num_bytes: int, *, was_cached: bool) -> Block | None:
    """Returns a block that is there and sound, held."""
    try:
        descriptor = open_for_lock(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if is_file_at(descriptor, path):  # not evicted between opening and locking
            os.utime(descriptor)
            if (data := _sound(path, num_bytes, check=was_cached)) is not None:
                return Block(data, was_cached, descriptor)
            os.unlink(path)
    except OSError:  # being evicted
        pass
    close_lock(descriptor)
    return None


def _evict(path: str) -> bool:
    """Removes a file unless somebody holds it."""
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


def _sound(path: str, num_bytes: int, *, check: bool) -> Bytes | None:
    """Returns the bytes of a block file, mapped, if their size is right, and their checksum where that is checked."""
    data, _ = kernels.map_file(path)
    if len(data) != num_bytes + _CHECKSUM.size:
        return None
    content = data[:num_bytes]
    if not check:
        return content
    return content if _CHECKSUM.unpack(data[num_bytes:].tobytes())[0] == zlib.crc32(content.data) else None
