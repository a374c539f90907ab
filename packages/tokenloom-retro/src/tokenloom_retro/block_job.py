"""Making the blocks of a task by whoever is free, then what they are for; making some again, to compare."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tokenloom.errors import ConfigError, StorageError
from tokenloom.jobs.folder import FolderGoneError, JobFolder
from tokenloom.jobs.protocols import Book, CountsT, ReportT, ShardT, SharedWork
from tokenloom.jobs.running import Runner, do_and_assemble, done_words, local_runner
from tokenloom.machine import boot_id, usable_processors
from tokenloom.progress import Task, if_stopped
from tokenloom.progress import task as shown_task
from tokenloom.storage.publishing import make_folder_of
from tokenloom_retro.block_plan import (
    Block,
    BlockPlan,
    BlockReport,
    BlockTask,
    BlockWork,
    RowCounts,
    crc32_of_arrays,
    part_path,
)
from tokenloom_retro.output import crc32_of

AssembledT = TypeVar("AssembledT")

_THREADS_PER_PROCESS = 16
"""Each process holds the whole index in memory, and libraries for vectors have threads of their own."""


@dataclass(frozen=True, slots=True)
class MadeBlock:
    """A block that is made, as `assemble` gets it.

    Attributes:
        block: its rows.
        report: what came out.
        path: path of its file, until the job ends.
    """

    block: Block
    report: BlockReport
    path: str


def make_blocks(
    task: BlockTask,
    folder_path: str,
    assemble: Callable[[Sequence[MadeBlock]], AssembledT],
    *,
    finished: Callable[[], AssembledT | None],
    pending: Sequence[str] = (),
    runner: Runner | None = None,
    restart: bool = False,
) -> AssembledT:
    """Makes what of a task is missing, alone or with others that share its folder, and returns what became of it.

    Args:
        task: what is made.
        folder_path: path of the job's folder; it goes when the task is done.
        assemble: makes of all blocks, in order, what the task is for; one process at a time.
        finished: returns that if it is there already, made of the same; None if not.
        pending: beginnings of the paths that `assemble` writes.
        runner: makes the blocks; None for processes of this machine.
        restart: gives up blocks that were made, where the task is not finished.

    Raises:
        ConfigError: the folder belongs to a task with other settings.
        StorageError: reading or writing failed; what was made is kept.
        TokenloomError: a block cannot be made.
    """
    plan = BlockPlan(task)
    make_folder_of(folder_path)
    folder: JobFolder[Block, BlockReport] = JobFolder(folder_path, plan)
    if (found := finished()) is not None:
        folder.remove_remains()
        return found
    if restart:
        folder.restart()
    run = runner or local_blocks()
    book = _RowBook(plan)
    try:
        with if_stopped(lambda: book.done_words), folder.joined(), book.shown():
            for block in plan.shards:
                if folder.report(block) is not None:
                    book.tell(block.number, RowCounts(block.stop - block.start), is_done=True)
            _, made = do_and_assemble(
                BlockWork(plan),
                folder,
                book,
                run=run,
                damaged=lambda: _damaged(plan, folder),
                assemble=lambda reports: assemble(_made(plan, folder, reports)),
                pending=pending,
            )
            return made
    except FolderGoneError as error:
        if (found := finished()) is not None:
            return found
        message = f"`{folder_path}` was removed while this task was working in it"
        raise StorageError(message, hint="run the same command again") from error


def local_blocks(*, num_processes: int | None = None, num_workers: int | None = None) -> Runner:
    """Returns what makes blocks on this machine.

    Args:
        num_processes: processes to start; None for as many as the processors feed.
        num_workers: threads of each; None for as many as there are processors left for it.

    Raises:
        ConfigError: a number is below 1.
    """

    def of(num_blocks: int) -> Runner:
        return local_runner(
            most_processes=max(1, num_blocks),
            num_processes=num_processes,
            num_workers=num_workers,
            threads_per_process=_THREADS_PER_PROCESS,
        )

    def run(
        work: SharedWork[ShardT, ReportT, CountsT], folder: JobFolder[ShardT, ReportT], book: Book[CountsT]
    ) -> None:
        of(len(work.plan.shards))(work, folder, book)

    of(1)  # which says what is wrong with the numbers
    return run


def _made(plan: BlockPlan, folder: JobFolder[Block, BlockReport], reports: Sequence[BlockReport]) -> list[MadeBlock]:
    return [
        MadeBlock(block, report, part_path(folder.part_prefix(block)))
        for block, report in zip(plan.shards, reports, strict=True)
    ]


def _damaged(plan: BlockPlan, folder: JobFolder[Block, BlockReport]) -> list[tuple[Block, str]]:
    """Returns the blocks whose files are not what was written, and in what.

    Sizes are compared for all; bytes are read only where another machine wrote them, or this one before it started.
    """
    here, problems = boot_id(), []
    for block in plan.shards:
        report = folder.report(block)
        path = part_path(folder.part_prefix(block))
        if report is None:
            problems.append((block, "its report is missing"))
        elif not os.path.exists(path) or os.path.getsize(path) != report.num_bytes:
            problems.append((block, f"`{path}` is missing or truncated"))
        elif report.boot_id != here and crc32_of(path) != report.crc32:
            problems.append((block, f"`{path}` does not hold what was written"))
    return problems


class _RowBook:
    """Adds up the rows that are made."""

    def __init__(self, plan: BlockPlan) -> None:
        self._plan = plan
        self._rows: dict[int, int] = {}
        self._done: set[int] = set()
        self._task: Task | None = None

    @property
    def done_words(self) -> str:
        """How many blocks are made, and what that means to somebody who stops here."""
        return done_words(len(self._done), len(self._plan.shards), "block")

    def tell(self, number: int, counts: RowCounts, *, is_done: bool = False) -> None:
        """Notes how far the block of a number is."""
        self._rows[number] = counts.num_rows
        if is_done:
            self._done.add(number)
        if self._task is not None:
            self._task.tell(
                sum(self._rows.values()), notes=[f"blocks {len(self._done):,} of {len(self._plan.shards):,}"]
            )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows how far the task is, for as long as the `with` block lasts."""
        task = self._plan.task
        with shown_task(task.name, unit=task.unit, total=task.num_rows) as self._task:
            yield


def differing_blocks(task: BlockTask, recorded: Sequence[int], *, fraction: float, seed: int = 0) -> list[Block]:
    """Makes some blocks again, and returns those that are not what they were.

    Args:
        task: what was made.
        recorded: checksums of the arrays of all blocks, in order.
        fraction: part of the blocks that is made again, above 0 and at most 1; at least one block.
        seed: decides which.

    Raises:
        ConfigError: the fraction is out of range, or there are more or fewer blocks than checksums.
        TokenloomError: a block cannot be made.
    """
    plan = BlockPlan(task)
    if not 0 < fraction <= 1:
        message = f"expected a fraction above 0 and at most 1, found {fraction!r}"
        raise ConfigError(message)
    if len(plan.shards) != len(recorded):
        message = f"expected checksums of {len(plan.shards)} blocks of {task.name}, found {len(recorded)}"
        raise ConfigError(message, hint="it was made of other data, or in blocks of another size")
    count = math.ceil(fraction * len(plan.shards))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(plan.shards))[:count]).tolist()
    different = []
    total = sum(plan.shards[number].stop - plan.shards[number].start for number in chosen)
    shown = shown_task(f"check of {task.name}", unit=task.unit, total=total)
    with shown as advance, task.maker(usable_processors()) as maker:
        for number in chosen:
            block = plan.shards[number]
            if crc32_of_arrays(maker.make(block.start, block.stop, advance)) != recorded[number]:
                different.append(block)
    return different
