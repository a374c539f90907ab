"""How far a job is, seen from outside: its folder is read, and no lock is taken, so that nobody waits for who looks.

What is written meanwhile may be missed, or be counted a moment later; what was there is never counted twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.errors import DatasetNotFoundError, StorageError
from tokenloom.machine import boot_id, is_running
from tokenloom.preprocess.folder import JOB, read_description
from tokenloom.preprocess.part import ShardReport
from tokenloom.storage.atomic import storage_errors

_LOCK = ".lock"
_ASSEMBLY = f"assembly{_LOCK}"
_OWNER_BYTES = 100
_KEY_DIGITS = 24

SILENT_SECONDS = 60.0
"""Whoever works on a shard touches its lock every 5 s; after so long it is taken for dead or frozen."""

_RECENT = 64
"""Shards that were done last, of which the speed is told."""

Reports = MutableMapping[str, tuple[ShardReport, float]]
"""Reports that were read, by key of the shard, each with the time at which it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorker:
    """A process that works on a shard, or has died of it.

    Attributes:
        machine: boot id of its machine.
        process: its number there.
        shard: key of the shard; None for putting parts together.
        silent_seconds: since its last sign of life.
        is_alive: whether it is there, as far as can be told from here.
    """

    machine: str
    process: int
    shard: str | None
    silent_seconds: float
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How far a job is.

    Attributes:
        folder: its folder.
        num_files: input files.
        num_shards: shards of all; None in folders of older versions, which do not tell.
        num_shards_done: number of these that have a report.
        num_documents, num_tokens: counts of these, before duplicates and splits are looked at.
        num_rejected, num_blank_lines: bad records set aside, and blank lines, in these.
        num_text_bytes: read for these, after decompression.
        busy_seconds: time that processes have spent on these, all together.
        machines: boot ids of machines that have done them, sorted.
        workers: who works, or has died.
        is_assembling: whether datasets are made out of the parts.
        num_unreadable: reports that are damaged; these shards are done again.
        began, ended: when the first shard was begun, and the last one done; seconds since 1970, None before that.
        tokens_per_second: over the shards that were done last; None where nobody works.
        seconds_left: at that speed; None where nobody works, or the number of shards is not known.
    """

    folder: str
    num_files: int
    num_shards: int | None
    num_shards_done: int
    num_documents: int
    num_tokens: int
    num_rejected: int
    num_blank_lines: int
    num_text_bytes: int
    busy_seconds: float
    machines: tuple[str, ...]
    workers: tuple[JobWorker, ...]
    is_assembling: bool
    num_unreadable: int
    began: float | None
    ended: float | None
    tokens_per_second: float | None
    seconds_left: float | None

    @property
    def is_alive(self) -> bool:
        """Whether somebody works on it."""
        return any(worker.is_alive for worker in self.workers)


def job_state(folder: str, *, now: float | None = None, known: Reports | None = None) -> JobState:
    """Returns how far a job is.

    Args:
        folder: path of its folder.
        now: seconds since 1970; None for the clock.
        known: reports that were read before, which are not read again; what is read is added.

    Raises:
        DatasetNotFoundError: the folder is gone, as once the job is done, or is none of a job.
        StorageError: it cannot be read.
    """
    described = read_description(os.path.join(folder, JOB))
    if described is None:
        message = f"expected the folder of a job, found no `{os.path.join(folder, JOB)}`"
        raise DatasetNotFoundError(message, hint="the job is done, and its folder gone; or it has not begun")
    now = time.time() if now is None else now
    known = {} if known is None else known
    names = _names(folder)
    keys = [name.removesuffix(".json") for name in names if name.endswith(".json") and _is_key(name[:-5])]
    num_unreadable = 0
    for key in keys:
        if key not in known and (found := _report(folder, key)) is not None:
            known[key] = found
        num_unreadable += key not in known
    done = [known[key] for key in keys if key in known]
    workers = _workers(folder, names, {report.key for report, _ in done}, now)
    num_shards = described.get("num_shards")
    num_shards = num_shards if type(num_shards) is int and num_shards >= len(done) else None
    speed, left = _speed(done, num_shards, now) if any(worker.is_alive for worker in workers) else (None, None)
    reports = [report for report, _ in done]
    files = described.get("files")
    return JobState(
        folder=folder,
        num_files=len(files) if isinstance(files, list) else 0,
        num_shards=num_shards,
        num_shards_done=len(done),
        num_documents=sum(report.num_documents for report in reports),
        num_tokens=sum(report.num_tokens for report in reports),
        num_rejected=sum(report.num_rejected for report in reports),
        num_blank_lines=sum(report.num_blank_lines for report in reports),
        num_text_bytes=sum(report.num_text_bytes for report in reports),
        busy_seconds=sum(report.seconds for report in reports),
        machines=tuple(sorted({report.boot_id for report in reports})),
        workers=workers,
        is_assembling=any(worker.shard is None and worker.is_alive for worker in workers),
        num_unreadable=num_unreadable,
        began=min((written - report.seconds for report, written in done), default=None),
        ended=max((written for _, written in done), default=None),
        tokens_per_second=speed,
        seconds_left=left,
    )


def _names(folder: str) -> list[str]:
    with storage_errors("list", folder):
        return sorted(os.listdir(folder))


def _is_key(text: str) -> bool:
    return len(text) == _KEY_DIGITS and all(char in "0123456789abcdef" for char in text)


def _report(folder: str, key: str) -> tuple[ShardReport, float] | None:
    """Returns a report and when it was written; None if it is damaged, or gone meanwhile."""
    path = os.path.join(folder, f"{key}.json")
    try:
        with open(path, "rb") as stream:
            return ShardReport.from_json(stream.read(), path=path), os.fstat(stream.fileno()).st_mtime
    except (OSError, StorageError):
        return None


def _workers(folder: str, names: list[str], done: set[str], now: float) -> tuple[JobWorker, ...]:
    workers = []
    for name in names:
        key = name.removesuffix(_LOCK)
        if name != _ASSEMBLY and (not name.endswith(_LOCK) or not _is_key(key) or key in done):
            continue
        with suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="ascii") as stream:
            machine, _, process = stream.read(_OWNER_BYTES).partition(" ")
            silent = max(0.0, now - os.fstat(stream.fileno()).st_mtime)
            shard = None if name == _ASSEMBLY else key
            alive = is_running(int(process)) if machine == boot_id() else silent < SILENT_SECONDS
            workers.append(
                JobWorker(machine=machine, process=int(process), shard=shard, silent_seconds=silent, is_alive=alive)
            )
    return tuple(workers)


def _speed(
    done: list[tuple[ShardReport, float]], num_shards: int | None, now: float
) -> tuple[float | None, float | None]:
    """Returns tokens per second over the shards that were done last, and the seconds that the others will take."""
    recent = sorted(done, key=lambda each: each[1])[-_RECENT:]
    if not recent:
        return None, None
    seconds = max(now - min(written - report.seconds for report, written in recent), 1e-3)
    left = None if num_shards is None else (num_shards - len(done)) * seconds / len(recent)
    return sum(report.num_tokens for report, _ in recent) / seconds, left
