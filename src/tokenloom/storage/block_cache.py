"""Blocks of objects in a folder that all processes of a node share, within a budget.

A block is a file under a hashed name: its bytes and their CRC-32, so that what a loss of power left behind is not
believed. It is mapped, and so stays readable when it is evicted. The process that fills a block holds a lock on the
part file it grows in, which the system releases when its holder dies; others that want the block wait there, so it is
fetched once. The budget counts blocks, and not those that are being filled at the same moment.
"""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress

from tokenloom import kernels
from tokenloom.errors import CacheNotWrittenWarning
from tokenloom.storage.local import Bytes
from tokenloom.storage.locks import filling, write_at

_CHECKSUM = struct.Struct("<I")


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

    def obtain(self, name: str, num_bytes: int, fetch: Callable[[], Bytes]) -> Bytes | None:
        """Returns a block, fetched if it is not here; None if the cache cannot take it.

        Args:
            name: name of the block, one for one content.
            num_bytes: its size.
            fetch: returns its bytes; called by one process at a time, and raises what it likes.
        """
        while True:
            path = os.path.join(self._folder, f"{name}.block")
            try:
                if (found := _open(path, num_bytes)) is not None:
                    return found
                with filling(path) as part:
                    if part is None:
                        continue
                    if num_bytes + _CHECKSUM.size > self._budget_bytes:
                        return None
                    descriptor, part_path = part
                    fetched = fetch()
                    self._make_room(num_bytes + _CHECKSUM.size)
                    write_at(descriptor, fetched.data, 0)
                    write_at(descriptor, memoryview(_CHECKSUM.pack(zlib.crc32(fetched.data))), num_bytes)
                    data, _ = kernels.map_file(part_path)
                    os.rename(part_path, path)
                    return data[:num_bytes]
            except OSError as error:
                if error.errno is None:  # ours, from `fetch`
                    raise
                self._warn(error)
                return None

    def _make_room(self, num_bytes: int) -> None:
        """Removes the blocks that were used longest ago."""
        found = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # removed by another process
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".block"):
                    found.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(size for _, size, _ in found) + num_bytes - self._budget_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size

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
