"""Facts of this machine and its processes; the only reader of `/proc`."""

from __future__ import annotations

import functools
import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usable_processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def boot_id() -> str:
    """Returns an id of this boot of this machine.

    Raises:
        OSError: the system has none; only Linux has.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def mount_namespace() -> int:
    """Returns the mount namespace of this process; containers have their own.

    Raises:
        OSError: the system has none.
    """
    return os.stat("/proc/self/ns/mnt").st_ino


def is_running(process: int) -> bool:
    """Whether a process exists on this machine."""
    return os.path.exists(f"/proc/{process}")


def process_namespace() -> str:
    """Returns an id of boot, PID namespace and user: processes that share it can read each other's start.

    Raises:
        OSError: the system has none.
    """
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


def process_start(process: int) -> str | None:
    """Returns the start of a process, in ticks since boot; None if it does not exist or has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stream:
            state, *fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZXx" else fields[18].decode()  # its parent may not have waited for it yet


def descriptor_path(descriptor: int) -> str:
    """Returns a path of an open file of this process; opening it starts at the beginning of the file."""
    return f"/proc/self/fd/{descriptor}"


def own_memory_bytes() -> int:
    """Returns the private memory of this process, without pages of files and shared memory."""
    with open("/proc/self/statm", "rb") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * _PAGE_BYTES
