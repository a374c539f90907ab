import os
from contextlib import suppress

import numpy as np

from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.settings import ObjectStorageSettings

BLOCK = 1 << 14
SETTINGS = ObjectStorageSettings(
    cache_bytes=8 * (BLOCK + 4), block_bytes=BLOCK, read_ahead_bytes=1 << 16, timeout_seconds=10, deadline_seconds=60
)


def read(remote: RemoteFile, offset: int, length: int) -> bytes:
    return remote.read(offset, length).tobytes()


def announce(remote: RemoteFile, ranges: list[tuple[int, int]], *, by_block: bool = False) -> None:
    """Announces ranges; by block, in blocks of 16 ranges of 1024 bytes each."""
    offsets, lengths = np.array(ranges, dtype=np.int64).T
    starts = offsets // BLOCK * BLOCK
    remote.will_need(
        offsets, lengths, blocks=(starts, np.minimum(starts + BLOCK, remote.num_bytes)) if by_block else None
    )


def num_open(folder: str | os.PathLike[str]) -> int:
    """Returns how many descriptors are of files below a folder: others may come and go with threads of other tests."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{os.fspath(folder)}/")
    return count
