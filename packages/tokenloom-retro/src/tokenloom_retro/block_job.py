"""Makes an output block by block, as a sharded job.

The arrays of a block depend only on its rows and on the settings and inputs of the task. So a killed task can be
resumed, and several processes and machines can share a task, as in preprocessing.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.machine import usable_processors
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.sharded import (
    Counts,
    ProgressBook,
    Runner,
    RunShard,
    ShardedJob,
    do_and_assemble,
    hash_of,
)
from tokenloom.progress import if_stopped
from tokenloom.progress import task as shown_task
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.json_files import Crc32, UnusableJsonError, from_versioned, parse_json, versioned_members_of
from tokenloom.storage.publishing import make_folder_of
from tokenloom_retro.block_files import planned_blocks
from tokenloom_retro.hdf5 import write_arrays
from tokenloom_retro.output import NewOutput, Output, OutputManifest, crc32_of

Arrays = Mapping[str, NDArray[Any]]

MakeBlock = Callable[[int, int, Callable[[int], None]], Arrays]
"""Returns the arrays of rows [start, stop), equal in each call; calls the third argument with numbers of rows made."""

_VERSION = 1
_THREADS_PER_PROCESS = 16  # each process loads the whole index


@dataclass(frozen=True, kw_only=True)
class BlockTask(ABC):
    """A task that makes an output block by block. Picklable.

    Attributes:
        output: the output and its identity.
        num_rows: total number of rows.
        block_size: rows per block; the last block may be smaller.
        unit: name of the rows, in the plural, such as "chunks".
    """

    output: Output
    num_rows: int
    block_size: int
    unit: str = "chunks"

    @abstractmethod
    def maker(self, num_threads: int) -> MakeBlock:
        """Returns the function that makes blocks in this process with `num_threads` threads."""

    @property
    def job_path(self) -> str:
        """Returns the path of the job's folder, which is removed when the job ends."""
        return f"{self.output.folder}.job"

    def assemble(self, made: Sequence[tuple[BlockReport, str]], output: NewOutput) -> Mapping[str, int]:
        """Adds the files of all blocks to the output, and returns the counts of the output, by name.

        `made` has, for each block in order, the report and the path of the temporary file.
        """
        planned = planned_blocks(self.output.folder, self.num_rows, self.block_size)
        for (report, path), target in zip(made, planned, strict=True):
            output.take(path, os.path.basename(target.path), crc32=report.crc32)
        return {self.unit: self.num_rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """The report of a block of rows [start, stop), written when the block's file is complete."""

    key: str  # hash of rows and identity
    start: int
    stop: int
    crc32: Crc32  # of the file
    arrays_crc32: Crc32  # of the arrays


def make_output(
    task: BlockTask,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    restart: bool = False,
    overwrite: bool = False,
) -> OutputManifest:
    """Makes the missing blocks of an output; returns the output's manifest. Several processes can share this work.

    See `build_retro` for the arguments.

    Raises:
        OutputExistsError: existing files would be replaced, and `overwrite` is False.
        ConfigError: the job's folder belongs to a task with other settings.
        TokenloomError: a block cannot be made or written; finished blocks are kept.
    """
    job = _BlockJob(task)
    run = runner or local_runner(
        most_processes=max(1, len(job.shards)),
        num_processes=num_processes,
        num_workers=num_workers,
        threads_per_process=_THREADS_PER_PROCESS,
    )
    make_folder_of(task.job_path)
    folder = JobFolder(task.job_path, job)
    if (found := task.output.finished_or_free(overwrite=overwrite)) is not None:
        folder.remove_remains()
        return found
    if restart:
        folder.restart()
    book = ProgressBook(job, task.output.task, unit=task.unit, measure="num_rows", total=task.num_rows)

    def assemble(reports: Sequence[BlockReport]) -> OutputManifest:
        paths = [_part_path(folder.part_prefix(block)) for block in job.shards]
        with NewOutput(task.output) as output:
            counts = task.assemble(list(zip(reports, paths, strict=True)), output)
            return output.publish(counts, blocks=[report.arrays_crc32 for report in reports], overwrite=overwrite)

    try:
        with if_stopped(lambda: book.done_words), folder.joined(), book.shown():
            book.add_done_shards(folder)
            return do_and_assemble(
                job,
                folder,
                book,
                run=run,
                damaged=lambda: _damaged(job, folder),
                assemble=assemble,
                pending=[os.path.join(task.output.folder, "")],
            )
    except FolderGoneError as error:
        if (found := task.output.finished()) is not None:
            return found
        message = f"`{task.job_path}` was removed during this task"
        raise StorageError(message, hint="run the same command again") from error


def differing_blocks(
    task: BlockTask, recorded: Sequence[int], *, fraction: float, seed: int = 0
) -> list[tuple[int, int]]:
    """Recomputes a random fraction of the blocks, at least one block; returns (start, stop) of each block that differs.

    `recorded` has the checksum of each block's arrays, in order; see `OutputManifest.blocks`.

    Raises:
        ConfigError: the fraction is out of range.
        TokenloomError: a block cannot be made.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"`fraction` must be in (0, 1], got {fraction!r}")
    blocks = _BlockJob(task).shards
    count = math.ceil(fraction * len(blocks))
    chosen = [blocks[number] for number in np.sort(np.random.default_rng(seed).permutation(len(blocks))[:count])]
    total = sum(block.stop - block.start for block in chosen)
    with shown_task(f"check of {task.output.task}", unit=task.unit, total=total) as advance:
        make = task.maker(usable_processors())
        return [
            (block.start, block.stop)
            for block in chosen
            if _crc32_of_arrays(make(block.start, block.stop, advance)) != recorded[block.number]
        ]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of rows of a task; `key` is a hash of the range of rows and of the task's identity."""

    number: int
    start: int
    stop: int
    key: str


@dataclass(frozen=True)
class _BlockJob(ShardedJob):
    """The job that makes the blocks of a task."""

    task: BlockTask

    shard_unit = "block"

    @cached_property
    def shards(self) -> tuple[_Block, ...]:
        identity = self.task.output.identity
        return tuple(
            _Block(number, planned.start, planned.stop, hash_of([_VERSION, identity, planned.start, planned.stop]))
            for number, planned in enumerate(planned_blocks("", self.task.num_rows, self.task.block_size))
        )

    def description(self) -> dict[str, Any]:
        return {"version": _VERSION, "task": self.task.output.task, **self.task.output.identity}

    def read_report(self, data: bytes, *, path: str) -> BlockReport:
        try:
            return from_versioned(BlockReport, parse_json(data), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a block: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove this file to make the block again") from error

    @contextmanager
    def worker(self, num_workers: int) -> Iterator[RunShard]:
        yield partial(_make_block, self.task.maker(num_workers))

    def counts_of(self, report: BlockReport, shard: _Block) -> Counts:
        return {"num_rows": shard.stop - shard.start}

    def location(self, shard: _Block) -> str:
        return f"{self.task.unit} {shard.start:,} to {shard.stop:,} of {self.task.output.task}"


def _make_block(
    make: MakeBlock, shard: _Block, part_prefix: str, *, progress: Callable[[Counts], None] | None = None
) -> BlockReport:
    """Makes a block and writes its file and report to the job's folder."""
    num_made = 0

    def advance(count: int) -> None:
        nonlocal num_made
        num_made += count
        if progress is not None:
            progress({"num_rows": num_made})

    arrays = make(shard.start, shard.stop, advance)
    path = _part_path(part_prefix)
    write_arrays(path, arrays, durable=False)
    checksums = {"crc32": crc32_of(path), "arrays_crc32": _crc32_of_arrays(arrays)}
    report = BlockReport(key=shard.key, start=shard.start, stop=shard.stop, **checksums)
    data = json.dumps(versioned_members_of(report, _VERSION), indent=1).encode() + b"\n"
    publish_bytes(f"{part_prefix}.json", data)
    return report


def _damaged(job: _BlockJob, folder: JobFolder) -> list[tuple[_Block, str]]:
    """Returns (block, problem) of each block with missing or damaged files."""
    problems = []
    for block in job.shards:
        report, path = folder.report(block), _part_path(folder.part_prefix(block))
        if report is None:
            problems.append((block, "its report is missing"))
        elif not os.path.exists(path) or crc32_of(path) != report.crc32:
            problems.append((block, f"`{path}` is missing, truncated or damaged"))
    return problems


def _crc32_of_arrays(arrays: Arrays) -> int:
    """Returns a checksum of names, dtypes, shapes and bytes of arrays."""
    crc = 0
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape} ".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", crc)
    return crc


def _part_path(part_prefix: str) -> str:
    """Returns the path of a block's file in the job's folder."""
    return f"{part_prefix}_0.hdf5"
