"""What the system says of this machine and its processes: the only reader of `/proc`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf

_DESCRIPTORS = "/proc/self/fd"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT = 1 << 60
"""From here on a limit of version 1 of control groups is none: the system rounds the largest number that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file system where it is mounted.

    Attributes:
        path: path of the mount.
        kind: its kind, such as "ext4", "nfs4" or "tmpfs".
        source: device, server or name that it is of.
        options: options of the mount and of the file system, such as "rw".
    """

    path: str
    kind: str
    source: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of this machine.

    Attributes:
        total_bytes, available_bytes: all of it, and what could be had now.
        limit_bytes: what this process and its group may have; None without a limit.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


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


@functools.cache
def has_descriptor_paths() -> bool:
    """Whether `descriptor_path` leads anywhere."""
    return os.path.isdir(_DESCRIPTORS)


def descriptor_path(descriptor: int) -> str:
    """Returns a path that leads to an open file of this process; opened by it, a file is read from its beginning."""
    return f"{_DESCRIPTORS}/{descriptor}"


def open_files() -> dict[int, str]:
    """Returns the path behind each open file of this process, by descriptor; none where the system does not say."""
    found = {}
    if has_descriptor_paths():
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # closed meanwhile
                found[int(name)] = os.readlink(f"{_DESCRIPTORS}/{name}")
    return found


def own_memory_bytes() -> int:
    """Returns the memory of this process alone: without pages of files, and without what it shares with others."""
    with open("/proc/self/statm", "rb") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * _PAGE_BYTES


def mounts() -> list[Mount]:
    """Returns what is mounted for this process, in the order in which it was.

    Raises:
        OSError: the system does not say.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        return list(mounts_in(stream))


def mounts_in(lines: Iterable[str]) -> Iterator[Mount]:
    """Yields the mounts that lines such as those of `mountinfo` tell."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 5 and len(kinds) > 2:
            options = frozenset((*fields[5].split(","), *kinds[2].split(",")))
            yield Mount(path=_unescaped(fields[4]), kind=kinds[0], source=_unescaped(kinds[1]), options=options)


def mount_of(path: str, among: Iterable[Mount]) -> Mount | None:
    """Returns the mount that a path lies on, which need not exist; None if none of these is."""
    real = os.path.realpath(path)
    found: Mount | None = None
    for mount in among:  # a later one at the same place hides the earlier
        above = mount.path if mount.path.endswith("/") else f"{mount.path}/"
        if f"{real}/".startswith(above) and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def allowed_cores() -> tuple[int, float | None]:
    """Returns on how many cores this process may run, and of how many it gets the time; None without a quota.

    Raises:
        OSError: the system does not say.
    """
    quota = inf
    for values in _group_values("cpu", {"cpu.max": "cpu.max", "cpu.cfs_quota_us": "cpu.cfs_period_us"}):
        if values[0].isdigit() and values[1].isdigit() and int(values[1]):
            quota = min(quota, int(values[0]) / int(values[1]))
    return len(os.sched_getaffinity(0)), None if quota == inf else quota


def memory() -> Memory:
    """Returns how much memory there is, and how much of it this process may have.

    Raises:
        OSError: the system does not say.
    """
    with open("/proc/meminfo", encoding="ascii") as stream:
        known = {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in stream)}
    names = {"memory.max": "memory.max", "memory.limit_in_bytes": "memory.limit_in_bytes"}
    limits = [int(value) for value, *_ in _group_values("memory", names) if value.isdigit() and int(value) < _NO_LIMIT]
    limit = min(limits, default=None)
    return Memory(total_bytes=known["MemTotal"], available_bytes=known["MemAvailable"], limit_bytes=limit)


def processor() -> tuple[str, frozenset[str]]:
    """Returns the name of the processor, and the instructions that it has, such as "avx2"; nothing of what is unknown.

    Raises:
        OSError: the system does not say.
    """
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        lines = [line.partition(":")[::2] for line in stream.read().split("\n\n", 1)[0].splitlines()]
    known = {name.strip().lower(): value.strip() for name, value in lines}
    flags = known.get("flags") or known.get("features") or ""
    return known.get("model name", ""), frozenset(flags.split())


def _group_values(controller: str, names: dict[str, str]) -> Iterator[list[str]]:
    """Yields the words of a file of each control group of this process, and of those above it.

    Args:
        controller: what is asked about.
        names: the file, and a second one whose words follow, where it is another.
    """
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as stream:
        groups = [line.rstrip("\n").split(":", 2) for line in stream]
    for mount in mounts():
        for _, controllers, path in groups:
            of_all = mount.kind == "cgroup2" and not controllers
            if of_all or (
                mount.kind == "cgroup" and controller in mount.options and controller in controllers.split(",")
            ):
                for folder in _folders(mount.path, path):
                    yield from _words(folder, names)


def _folders(mount: str, group: str) -> Iterator[str]:
    """Yields the folder of a group and those above it; in a container only the mount may be there."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:count])


def _words(folder: str, names: dict[str, str]) -> Iterator[list[str]]:
    for first, second in names.items():
        with suppress(OSError):  # a group without it has no limit
            found = []
            for name in dict.fromkeys((first, second)):
                with open(os.path.join(folder, name), encoding="ascii") as stream:
                    found += stream.read().split()
            yield found


def _unescaped(text: str) -> str:
    """Returns a path as it is: blanks and such stand in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
