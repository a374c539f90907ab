"""How fast a disk writes and reads: a bounded measurement, in a scratch file that goes away."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.doctor.disk_trial import SCRATCH

MOST_BYTES = 64_000_000
MOST_SECONDS = 2.0
_FIRST_BYTES, _CHUNK_BYTES = 1_000_000, 16_000_000
"""Chunks double: a disk of 1 MB/s is not waited for longer, and one that is fast is not asked 64 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpeed:
    """What was measured.

    Attributes:
        num_bytes: written, and read again.
        written_per_second: bytes per second until they are on the disk.
        read_per_second: bytes per second from the disk, as far as the system forgets what it has in memory.
        problem: why there is no measurement; None if there is one.
    """

    num_bytes: int = 0
    written_per_second: float = 0.0
    read_per_second: float = 0.0
    problem: str | None = None


def measure_disk(folder: str, *, most_bytes: int = MOST_BYTES, most_seconds: float = MOST_SECONDS) -> DiskSpeed:
    """Returns how fast the disk of a folder is: half of the time is for writing, half for reading; one chunk at least.

    The file has no name where the system can do without, so that it goes even if this process is killed.
    """
    data = memoryview(os.urandom(min(_CHUNK_BYTES, most_bytes)))  # a disk that compresses would be too fast
    chunk = min(_FIRST_BYTES, most_bytes)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=SCRATCH, buffering=0) as file:
            descriptor = file.fileno()
            began, num_bytes = time.perf_counter(), 0
            while num_bytes < most_bytes:
                num_bytes += _write(descriptor, data[: min(chunk, most_bytes - num_bytes)])
                os.fsync(descriptor)
                chunk = min(2 * chunk, len(data))
                if (written := time.perf_counter() - began) > most_seconds / 2:
                    break
            with suppress(OSError, AttributeError):  # a wish, which not every file system knows
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            began, num_read = time.perf_counter(), 0
            while num_read < num_bytes:
                num_read += len(os.pread(descriptor, len(data), num_read))
                if (read := time.perf_counter() - began) > most_seconds / 2:
                    break
    except OSError as error:
        return DiskSpeed(problem=f"cannot be measured: {error.strerror or error}")
    return DiskSpeed(num_bytes=num_bytes, written_per_second=num_bytes / written, read_per_second=num_read / read)


def _write(descriptor: int, data: memoryview) -> int:
    done = 0
    while done < len(data):  # a full disk takes a part first
        done += os.write(descriptor, data[done:])
    return done
