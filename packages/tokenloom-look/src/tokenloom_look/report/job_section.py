"""How far a job is that makes a corpus: shards, speed, time left, who works on it, what was rejected so far."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from tokenloom.errors import StorageError
from tokenloom.machine import boot_id
from tokenloom.preprocess.job_state import JobState, JobWorker, job_state
from tokenloom.preprocess.rejected_reasons import RejectedReasons
from tokenloom.rendering.words import size
from tokenloom_look.html import Cell, Markup, facts, joined, table
from tokenloom_look.report.input_section import reasons_table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.section import Section
from tokenloom_look.report.words import duration, share
from tokenloom_look.target import Target

_MOST_WORKERS = 50
_MOST_REJECTED_BYTES = 16 << 20
_REJECTED = ".rejected.jsonl"
_MACHINE_DIGITS = 8


def job_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns how far a job is; None where the target is none.

    Raises:
        DatasetNotFoundError: it is done meanwhile, and its folder gone.
        StorageError: its folder cannot be read.
    """
    if target.folder is None:
        return None
    now = time.time() if options.now is None else options.now
    state = job_state(target.folder, now=now)
    html: list[Cell] = [job_html(state, now)]
    reasons = _rejected(target.folder)
    if reasons.num_records:
        html.append(reasons_table(reasons))
    return Section(id="job", title="How far the job is", html=joined(html), findings=list(_findings(state)))


def job_html(state: JobState, now: float) -> Markup:
    """Returns what a job did so far, and who works on it."""
    return joined([_facts(state, now), *([_workers(state)] if state.workers else [])])


def _facts(state: JobState, now: float) -> Cell:
    done = f"{state.num_shards_done:,}"
    if state.num_shards is not None:
        done += f" of {state.num_shards:,} ({share(state.num_shards_done, state.num_shards)})"
    speed, left = state.tokens_per_second, state.seconds_left
    return facts(
        [
            ("folder", state.folder),
            ("input files", state.num_files or None),
            ("shards done", done),
            ("documents so far", state.num_documents),
            ("tokens so far", state.num_tokens),
            ("text read so far", size(state.num_text_bytes)),
            ("rejected so far", state.num_rejected),
            ("blank lines so far", state.num_blank_lines),
            ("speed", None if speed is None else f"{speed:,.0f} tokens/s"),
            ("time left, about", None if left is None else duration(left)),
            ("last shard done", None if state.ended is None else f"{duration(max(0.0, now - state.ended))} ago"),
            ("work of all processes", duration(state.busy_seconds)),
            ("machines that have done shards", len(state.machines) or None),
            ("now", _doing(state)),
        ]
    )


def _doing(state: JobState) -> str:
    if state.is_assembling:
        return "parts are put together"
    num_alive = sum(worker.is_alive for worker in state.workers)
    return f"{num_alive:,} at work" if num_alive else "nobody works on it"


def _workers(state: JobState) -> Cell:
    rows: list[list[Cell]] = []
    for worker in state.workers[:_MOST_WORKERS]:
        doing = "puts parts together" if worker.shard is None else f"shard {worker.shard}"
        alive = "works" if worker.is_alive else "is gone, or silent"
        rows.append([_machine(worker), f"{worker.process}", doing, alive, f"{duration(worker.silent_seconds)} ago"])
    columns = ["machine", "process", "what it does", "how it is", "last sign of life"]
    left = len(state.workers) - len(rows)
    return table(columns, rows, note=f"{left:,} others are not shown." if left else None)


def _machine(worker: JobWorker) -> str:
    return "this one" if worker.machine == boot_id() else worker.machine[:_MACHINE_DIGITS]


def _rejected(folder: str) -> RejectedReasons:
    """Returns what was set aside so far, of shards that are done; files that go meanwhile are left out."""
    reasons, left = RejectedReasons(), _MOST_REJECTED_BYTES
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith(_REJECTED) or name.startswith("."):
            continue
        if left <= 0:
            reasons.is_whole = False
            break
        try:
            left -= os.stat(path).st_size
            reasons.add_file(path, most_bytes=_MOST_REJECTED_BYTES)
        except (FileNotFoundError, StorageError):
            continue
    return reasons


def _findings(state: JobState) -> Iterator[str]:
    gone = [worker for worker in state.workers if not worker.is_alive]
    if not state.is_alive:
        yield "Nobody works on this job: the same command goes on where it was."
    elif gone:
        yield f"Of the processes that worked on it, {len(gone):,} are gone or silent; others do their shards again."
    if state.num_unreadable:
        yield f"{state.num_unreadable:,} reports of shards are damaged: these shards are done again."
    num_records = state.num_documents + state.num_rejected
    if state.num_rejected > 0.001 * num_records:
        yield f"{share(state.num_rejected, num_records)} of the records were rejected so far: {state.num_rejected:,}."
