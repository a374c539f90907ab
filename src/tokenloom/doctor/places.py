"""Folders that are read and written: what they are on, what is free, what works there, and how fast it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from tokenloom.doctor.bounded import answer_within
from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.doctor.disk_speed import MOST_BYTES, MOST_SECONDS, DiskSpeed, measure_disk
from tokenloom.doctor.disk_trial import Trial, try_folder
from tokenloom.machine import Mount, mount_of, mounts
from tokenloom.rendering.words import size
from tokenloom.storage.settings import CACHE_VARIABLE, ObjectStorageSettings

_NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "9p", "afs", "glusterfs", "wekafs", "virtiofs")
_MEMORY = ("tmpfs", "ramfs")
_PATIENCE_SECONDS = 5.0
"""A server of files that takes longer than this for a few calls is not there."""

_FULL_BYTES = 16 << 20
_LITTLE_BYTES = 1 << 30
_FEW_INODES = 10_000
_ROOM = 4
"""How often the file of a measurement must fit: others may be writing to the same disk."""

_SLOW_BYTES_PER_SECOND = 50e6


def check_places(asked: Asked) -> Iterator[Finding]:
    """Yields what is to know of the cache's folder, and of each that is named."""
    mounted, measured = mounts(), set[int]()
    cache = ObjectStorageSettings().folder
    for subject, path in (("cache", cache), *(("data", path) for path in asked.paths)):
        find = partial(_first_above, path) if subject == "cache" else partial(folder_of, path)
        try:
            found = answer_within(_PATIENCE_SECONDS, partial(_try, find))
            if found is None:
                text = f"`{path}`: there is no such file, folder or pair"
                hint = "name what is there, or the folder where it shall be"
                yield Finding(subject=subject, verdict=Verdict.problem, text=text, hint=hint, facts={"path": path})
                continue
            trial, device, real = found
            mount = mount_of(real, mounted)
            yield place_finding(subject, path, mount, trial)
            has_room = trial.num_free_bytes > _ROOM * MOST_BYTES
            if asked.measures_speed and trial.is_writable and has_room and device not in measured:
                measured.add(device)
                asked.say(f"measuring the disk of {trial.folder}: {size(MOST_BYTES)} and {MOST_SECONDS:g} s at most")
                speed = answer_within(2 * _PATIENCE_SECONDS, partial(measure_disk, trial.folder))
                is_in_memory = mount is not None and mount.kind in _MEMORY
                yield speed_finding(trial.folder, speed, is_in_memory=is_in_memory)
        except TimeoutError as error:
            text, hint = f"`{path}`: {error}", "its disk or its server does not answer: look at it, or at the network"
            yield Finding(subject=subject, verdict=Verdict.problem, text=text, hint=hint, facts={"path": path})


def _try(find: Callable[[], str | None]) -> tuple[Trial, int, str] | None:
    """Returns what works in the folder that is found, the number of its device, and its path without links."""
    folder = find()
    return None if folder is None else (try_folder(folder), os.stat(folder).st_dev, os.path.realpath(folder))


def folder_of(path: str) -> str | None:
    """Returns the folder that a path is, or lies in as a file or the prefix of a pair; None if nothing is there."""
    if os.path.isdir(path):
        return path
    names = (path, *(path + suffix for suffix in (".idx", ".bin")))
    return (os.path.dirname(path) or ".") if any(map(os.path.exists, names)) else None


def place_finding(subject: str, path: str, mount: Mount | None, trial: Trial) -> Finding:
    """Returns what a folder is like: the gravest thing decides the verdict, and what is to be done."""
    kind = "an unknown file system" if mount is None else mount.kind
    kind += "" if mount is None or mount.source in (mount.kind, "none") else f" of {mount.source}"
    free = f"{size(trial.num_free_bytes)} free"
    words = [f"{path}: {kind}", free if trial.num_free_inodes is None else f"{free}, {trial.num_free_inodes:,} files"]
    words.append("writable" if trial.is_writable else f"cannot be written ({trial.reason})")
    if trial.failed:
        words.append(f"does not work: {', '.join(trial.failed)}")
    facts = {
        "path": path,
        "folder": trial.folder,
        "file_system": None if mount is None else mount.kind,
        "mount": None if mount is None else mount.path,
        "num_free_bytes": trial.num_free_bytes,
        "num_free_inodes": trial.num_free_inodes,
        "writable": trial.is_writable,
        "failed": dict(trial.failed),
    }
    verdict, hint = _judged(subject, mount, trial)
    return Finding(subject=subject, verdict=verdict, text="; ".join(words), hint=hint, facts=facts)


def _judged(subject: str, mount: Mount | None, trial: Trial) -> tuple[Verdict, str | None]:
    is_cache, kind = subject == "cache", "" if mount is None else mount.kind
    elsewhere = f"name a folder of a local disk with {CACHE_VARIABLE}"
    if trial.is_writable and trial.num_free_bytes < _FULL_BYTES:
        return Verdict.problem, f"it is full: make room, or {elsewhere if is_cache else 'write to another disk'}"
    if trial.failed:
        return Verdict.problem, "mount it with locks, or write to another disk: outputs and caches rely on these"
    if not trial.is_writable:
        if is_cache:
            return Verdict.problem, f"nothing of object storage can be kept: {elsewhere}"
        return Verdict.ok, "data can be read here; indices and outputs need another folder"
    if trial.num_free_bytes < (ObjectStorageSettings().cache_bytes if is_cache else _LITTLE_BYTES):
        hint = f"the cache takes up to {size(ObjectStorageSettings().cache_bytes)}: make room, allow it less, or "
        return Verdict.warning, hint + elsewhere if is_cache else "make room before something is written here"
    if trial.num_free_inodes is not None and trial.num_free_inodes < _FEW_INODES:
        return Verdict.warning, "few files can be made here: remove some"
    if is_cache and (kind.startswith(_NETWORK) or kind.startswith("fuse")):
        return Verdict.warning, f"blocks that come over a network are kept on a network: {elsewhere}"
    if is_cache and kind == "overlay":
        return Verdict.warning, f"what is kept goes with the container: mount a disk, and {elsewhere}"
    return Verdict.ok, None


def speed_finding(folder: str, speed: DiskSpeed, *, is_in_memory: bool) -> Finding:
    """Returns how fast a disk is: a warning where that will be waited for."""
    facts = {
        "folder": folder,
        "num_bytes": speed.num_bytes,
        "written_bytes_per_second": speed.written_per_second,
        "read_bytes_per_second": speed.read_per_second,
    }
    if speed.problem is not None:
        text, hint = f"{folder}: {speed.problem}", "make room, or have the limit raised"
        return Finding(subject="speed", verdict=Verdict.problem, text=text, hint=hint, facts=facts)
    text = f"{folder}: writes {size(round(speed.written_per_second))}/s, reads {size(round(speed.read_per_second))}/s"
    text += f", of {size(speed.num_bytes)}" + (" in memory" if is_in_memory else "")
    if min(speed.written_per_second, speed.read_per_second) >= _SLOW_BYTES_PER_SECOND:
        return Finding(subject="speed", text=text, facts=facts)
    hint = "jobs and first readings will wait for this disk; another may be faster, or somebody else is using it"
    return Finding(subject="speed", verdict=Verdict.warning, text=text, hint=hint, facts=facts)


def _first_above(path: str) -> str:
    """Returns a folder, or the first above it that is there, where it would be made."""
    while not os.path.isdir(path):
        path = os.path.dirname(os.path.abspath(path))
    return path
