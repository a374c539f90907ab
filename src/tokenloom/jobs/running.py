"""A job from its first shard to the last: by whom its shards are done, and who puts together what came out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.jobs.folder import JobFolder
from tokenloom.jobs.processes import work_in_processes, work_on_shards
from tokenloom.jobs.protocols import Book, CountsT, ReportT, ShardT, SharedWork
from tokenloom.machine import usable_processors
from tokenloom.numbers import checked_integer
from tokenloom.progress import NOTHING_WRITTEN, waiting_for

_LOGGER = logging.getLogger(__name__)

AssembledT = TypeVar("AssembledT")


class Runner(Protocol):
    """Does the shards of a job."""

    def __call__(
        self, work: SharedWork[ShardT, ReportT, CountsT], folder: JobFolder[ShardT, ReportT], book: Book[CountsT]
    ) -> None:
        """Returns when all shards are done, by it or by others; tells the book of every step."""


def done_words(num_done: int, num_shards: int, unit: str = "shard") -> str:
    """Returns how many shards are done, and what that means to somebody who stops the job here.

    Args:
        num_done, num_shards: number of shards that are done, and of all.
        unit: what the job calls a shard.
    """
    if num_done == num_shards:
        return f"all {num_shards:,} {unit}s are done: run the same command again to put them together"
    if num_done:
        are = "is" if num_done == 1 else "are"
        return f"{num_done:,} of {num_shards:,} {unit}s {are} done: run the same command again to go on"
    return NOTHING_WRITTEN


def local_runner(
    *, most_processes: int, num_processes: int | None, num_workers: int | None, threads_per_process: int = 1
) -> Runner:
    """Returns what works on this machine: in this process, or in several.

    Args:
        most_processes: number of processes that have something to do: the shards, or 1 where only this one can read.
        num_processes: processes to start; None for as many as the processors feed.
        num_workers: threads of each; None for as many as there are processors left for it.
        threads_per_process: most threads that one process feeds.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, number in (("process", num_processes), ("worker", num_workers)):
        setting = "num_processes" if name == "process" else "num_workers"
        if number is not None and checked_integer(setting, number) < 1:
            message = f"expected at least 1 {name}, got {number!r}"
            raise ConfigError(message)
    num_processors = usable_processors()
    processes = min(num_processes or max(1, num_processors // (num_workers or threads_per_process)), most_processes)
    workers = num_workers or max(1, num_processors // processes)

    def run(
        work: SharedWork[ShardT, ReportT, CountsT], folder: JobFolder[ShardT, ReportT], book: Book[CountsT]
    ) -> None:
        suspects = any(os.path.exists(folder.journal_path(shard)) for shard in work.plan.shards)
        is_alone = work.plan.reads_streams or not suspects  # this process must not die of a record
        if processes == 1 and is_alone:
            work_on_shards(work, folder, num_workers=workers, book=book)
        else:
            work_in_processes(work, folder, num_processes=processes, num_workers=workers, book=book)

    return run


def do_and_assemble(
    work: SharedWork[ShardT, ReportT, CountsT],
    folder: JobFolder[ShardT, ReportT],
    book: Book[CountsT],
    *,
    run: Runner,
    damaged: Callable[[], Sequence[tuple[ShardT, str]]],
    assemble: Callable[[list[ReportT]], AssembledT],
    pending: Sequence[str],
) -> tuple[list[ReportT], AssembledT]:
    """Returns the reports of all shards, and what became of them, once the folder is gone.

    Args:
        work: the job's plan, and what does its shards.
        folder: folder of the job, joined.
        book: hears of every step.
        run: does the shards.
        damaged: returns the shards whose files are not what was written, and in what: they are done again.
        assemble: makes of the reports, and of the files beside them, what the job is for.
        pending: beginnings of the paths that it writes on this machine.

    Raises:
        FolderGoneError: the job was finished meanwhile.
        TokenloomError: a shard cannot be done, or the result cannot be written.
    """
    while True:
        run(work, folder, book)
        # One process alone reads the parts; the others wait here until the folder is gone, or something is to be done.
        with ExitStack() as held:
            with waiting_for(f"another process, which puts the parts in `{folder.path}` together"):
                held.enter_context(folder.lock("assembly.lock", pending=pending))
            problems = damaged()
            if not problems:
                reports = [report for shard in work.plan.shards if (report := folder.report(shard)) is not None]
                assembled = assemble(reports)
                folder.remove()
                return reports, assembled
            for shard, problem in problems:
                _LOGGER.warning("shard %d is done again: %s", shard.number, problem)
                folder.forget(shard)
