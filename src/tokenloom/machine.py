"""Facts about this machine and its processes; the only module that reads `/proc`."""

from __future__ import annotations

import functools
import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usable_processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def boot_id() -> str:
    """Returns an ID that changes at each boot of this machine; raises `OSError` if not on Linux."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def mount_namespace() -> int:
    """Returns the ID of this process's mount namespace, unique per container; raises `OSError` if not on Linux."""
    return os.stat("/proc/self/ns/mnt").st_ino


def is_running(process: int) -> bool:
    """Returns whether a process with the ID `process` exists on this machine."""
    return os.path.exists(f"/proc/{process}")


def process_namespace() -> str:
    """Returns an ID of the boot, PID namespace and user of this process; raises `OSError` if not on Linux.

    Processes for which this function returns the same ID can call `process_start` on each other.
    """
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


def process_start(process: int) -> str | None:
    """Returns the start time of a process, in clock ticks since boot; None if the process is missing or has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stream:
            state, *fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZXx" else fields[18].decode()  # a zombie has ended, too


def descriptor_path(descriptor: int) -> str:
    """Returns a path for opening the file of an open descriptor again, with a separate file position."""
    return f"/proc/self/fd/{descriptor}"


def own_memory_bytes() -> int:
    """Returns the resident bytes of memory of this process, excluding file-backed and shared pages."""
    with open("/proc/self/statm", "rb") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * _PAGE_BYTES
