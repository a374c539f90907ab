"""The section "Progress of the job": shards, speed, time left, processes, rejected records; does not lock the job."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.errors import DatasetNotFoundError, StorageError
from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.preprocess.folder import JOB, done_keys, read_description
from tokenloom.preprocess.shard import ShardReport
from tokenloom.rendering.words import counted, size
from tokenloom.storage.atomic import storage_errors
from tokenloom_look.html import Cell, Markup, facts, joined
from tokenloom_look.report.input_section import RejectedReasons, reasons_table
from tokenloom_look.report.section import ReportOptions, Section, duration, share
from tokenloom_look.target import Target

_SILENT_SECONDS = 60.0  # processes update their lock every 5 s; without an update for this long, they count as dead
_LOCK = re.compile(r"[0-9a-f]{24}\.lock")
_RECENT = 64  # the speed is measured over at most this many shards, those that finished last


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The progress of a job; `done` has (report, completion time in seconds since 1970) of each finished shard."""

    folder: str
    num_files: int
    num_shards: int
    done: tuple[tuple[ShardReport, float], ...]
    num_alive: int

    def total(self, name: str) -> int:
        return sum(getattr(report, name) for report, _ in self.done)

    @property
    def doing(self) -> str:
        if len(self.done) == self.num_shards:
            return "merging parts"
        return f"running in {counted(self.num_alive, 'process')}" if self.num_alive else "no process is running"


def job_state(folder: str, now: float) -> JobState:
    described = read_description(os.path.join(folder, JOB))
    if described is None:
        hint = "the job may be done, with its folder removed, or not started"
        raise DatasetNotFoundError(f"`{folder}` is not the folder of a job", hint=hint)
    done: dict[str, tuple[ShardReport, float]] = {}
    for key in done_keys(folder):
        path = os.path.join(folder, f"{key}.json")
        with suppress(OSError, StorageError), open(path, "rb") as stream:  # damaged or removed
            done[key] = ShardReport.from_json(stream.read(), path=path), os.fstat(stream.fileno()).st_mtime
    with storage_errors("list", folder), os.scandir(folder) as entries:
        locks = [entry for entry in entries if _LOCK.fullmatch(entry.name) and entry.name[:24] not in done]
        num_alive = sum(now - lock.stat().st_mtime < _SILENT_SECONDS for lock in locks)
    return JobState(
        folder=folder,
        num_files=len(described["files"]),
        num_shards=described["num_shards"],
        done=tuple(sorted(done.values(), key=lambda each: each[1])),
        num_alive=num_alive,
    )


def job_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the progress of a job; None for other targets."""
    if target.folder is None:
        return None
    now = time.time() if options.now is None else options.now
    state = job_state(target.folder, now)
    html: list[Cell] = [job_html(state, now)]
    reasons = RejectedReasons()
    for name in sorted(os.listdir(target.folder)):
        if name.endswith(REJECTED_SUFFIX) and not name.startswith("."):
            with suppress(FileNotFoundError):
                reasons.add_file(os.path.join(target.folder, name))
    if reasons.num_records:
        html.append(reasons_table(reasons))
    return Section(id="job", title="Progress of the job", html=joined(html), findings=list(_findings(state)))


def job_html(state: JobState, now: float) -> Markup:
    num_done, recent = len(state.done), state.done[-_RECENT:]
    speed = left = None
    if recent and state.num_alive:
        seconds = max(now - min(written - report.seconds for report, written in recent), 1e-3)
        speed = f"{sum(report.num_tokens for report, _ in recent) / seconds:,.0f} tokens/s"
        left = duration((state.num_shards - num_done) * seconds / len(recent))
    return facts(
        [
            ("folder", state.folder),
            ("input files", state.num_files or None),
            ("shards done", f"{num_done:,} of {state.num_shards:,} ({share(num_done, state.num_shards)})"),
            ("documents so far", state.total("num_documents")),
            ("tokens so far", state.total("num_tokens")),
            ("text read so far", size(state.total("num_text_bytes"))),
            ("rejected so far", state.total("num_rejected")),
            ("blank lines so far", state.total("num_blank_lines")),
            ("speed", speed),
            ("estimated time left", left),
            ("last shard done", f"{duration(max(0.0, now - recent[-1][1]))} ago" if recent else None),
            ("time spent, all processes", duration(sum(report.seconds for report, _ in state.done))),
            ("state", state.doing),
        ]
    )


def _findings(state: JobState) -> Iterator[str]:
    if not state.num_alive and len(state.done) < state.num_shards:
        yield "No process is running: run the command of the job again to resume it."
    num_rejected = state.total("num_rejected")
    num_records = state.total("num_documents") + num_rejected
    if num_rejected > 0.001 * num_records:
        yield f"{share(num_rejected, num_records)} of the records were rejected so far: {num_rejected:,}."
