"""What the system says of this machine and its processes: the only reader of `/proc`."""

from __future__ import annotations

import functools
import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usable_processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def boot_id() -> str:
    """Returns what changes when this machine starts anew, and is different on every machine.

    Raises:
        OSError: the system does not say; only Linux does.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def mount_namespace() -> int:
    """Returns the number of this process's view of the file systems, which containers have of their own.

    Raises:
        OSError: the system does not say.
    """
    return os.stat("/proc/self/ns/mnt").st_ino


def is_running(process: int) -> bool:
    """Whether there is a process of this number on this machine."""
    return os.path.exists(f"/proc/{process}")


def process_namespace() -> str:
    """Returns what two processes share where each sees the other's start, as they do not across containers or users.

    Raises:
        OSError: the system does not say.
    """
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


def process_start(process: int) -> str | None:
    """Returns when a process of this number began, in ticks since boot; None if there is none, or it has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stream:
            state, *fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZXx" else fields[18].decode()  # its parent may not have waited for it yet


def descriptor_path(descriptor: int) -> str:
    """Returns a path that leads to an open file of this process; opened by it, a file is read from its beginning."""
    return f"/proc/self/fd/{descriptor}"


def own_memory_bytes() -> int:
    """Returns the memory of this process alone: without pages of files, and without what it shares with others."""
    with open("/proc/self/statm", "rb") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * _PAGE_BYTES
