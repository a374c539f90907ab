"""What the system allows a process: open files, processes, locked memory, and memory that processes share."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.rendering.words import size

SHARED_MEMORY = "/dev/shm"

_FEW_FILES = 4096
"""The object cache alone keeps up to 256 open, and a blend has files by the hundred."""

_FEW_PROCESSES = 1024
_LITTLE_SHARED_BYTES = 1 << 30
"""Torch's loaders hand batches over through shared memory: 8 processes with 2 batches of 8 x 8,192 ids have 40 MB."""


def check_limits(_: Asked) -> Iterator[Finding]:
    """Yields the limits, those that are low as warnings."""
    yield limit_finding("open files", "num_open_files", *resource.getrlimit(resource.RLIMIT_NOFILE))
    yield limit_finding("processes", "num_processes", *resource.getrlimit(resource.RLIMIT_NPROC))
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts = {"num_locked_bytes": _or_none(soft), "num_most_locked_bytes": _or_none(hard)}
    text = "no limit" if soft == resource.RLIM_INFINITY else size(soft)
    yield Finding(subject="locked memory", text=text, facts=facts)
    yield shared_memory_finding(SHARED_MEMORY)


_LOW = {"num_open_files": (_FEW_FILES, "n"), "num_processes": (_FEW_PROCESSES, "u")}


def limit_finding(subject: str, name: str, soft: int, hard: int) -> Finding:
    """Returns a limit in words: a warning where it is low, with the command that raises it."""
    least, letter = _LOW[name]
    facts = {name: _or_none(soft), name.replace("num_", "num_most_"): _or_none(hard)}
    text = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if hard != soft:
        text += f", up to {'any number' if hard == resource.RLIM_INFINITY else f'{hard:,}'} if it is raised"
    if soft == resource.RLIM_INFINITY or soft >= least:
        return Finding(subject=subject, text=text, facts=facts)
    most = least if hard == resource.RLIM_INFINITY else min(least, hard)
    hint = f"raise it in the script that starts the run: `ulimit -{letter} {most}`"
    if most <= soft:
        hint = f"{least:,} are enough for most runs; the administrator of the machine or container can allow them"
    return Finding(subject=subject, verdict=Verdict.warning, text=text, hint=hint, facts=facts)


def shared_memory_finding(folder: str) -> Finding:
    """Returns how much processes can share."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        hint = "loaders with processes hand batches over through it: mount it, or read with threads"
        text = f"`{folder}`: {error.strerror}"
        return Finding(subject="shared memory", verdict=Verdict.warning, text=text, hint=hint)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    facts = {"path": folder, "num_total_bytes": total, "num_free_bytes": free}
    text = f"{size(free)} of {size(total)} free, {folder}"
    if free >= _LITTLE_SHARED_BYTES:
        return Finding(subject="shared memory", text=text, facts=facts)
    hint = "loaders with processes hand batches over through it: `docker run --shm-size=8g`, or read with threads"
    return Finding(subject="shared memory", verdict=Verdict.warning, text=text, hint=hint, facts=facts)


def _or_none(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
