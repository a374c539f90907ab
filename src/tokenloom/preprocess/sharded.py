"""Jobs that are split into shards: any free process does the next shard, then one process assembles all parts.

A job defines its shards, for example slices of a corpus or rows of a table.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, TypeVar

from tokenloom.errors import StorageError
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.progress import NOTHING_WRITTEN, Task, task, waiting_for

_LOGGER = logging.getLogger(__name__)

AssembledT = TypeVar("AssembledT")

Counts = Mapping[str, int]
"""The progress of a shard: counts by name, such as `num_tokens`."""

RunShard = Callable[..., Any]
"""`run(shard, part_prefix, progress=None)` writes the files of a shard, then its report to `{part_prefix}.json`, and
returns the report. It calls `progress` often with `Counts`, from the calling thread."""


def hash_of(value: Any) -> str:
    """Returns a hash, 24 hex digits, of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


class ShardedJob(ABC):
    """The interface of a sharded job. Picklable, and equal in every process of the job.

    A shard has a `number`, its index in `shards`, and a `key`: a hash, as 24 hex digits, of the inputs and settings
    that decide the bytes of the part.

    Attributes:
        shard_unit: noun for a shard in messages.
    """

    shard_unit: ClassVar[str] = "shard"

    @property
    @abstractmethod
    def shards(self) -> Sequence[Any]:
        """All shards, in order; each has the attributes `number` and `key`."""

    @property
    def worker_timeout_seconds(self) -> float:
        """Seconds without a heartbeat after which another process may take over a shard."""
        return 600.0

    @property
    def reads_streams(self) -> bool:
        """Whether an input is a pipe, which only this process can read, and only once."""
        return False

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Returns the settings that must be equal in all processes of the job, as JSON values."""

    def input_keys(self) -> list[str]:
        """Returns the sorted short hashes of all inputs; a job may resume with more inputs, but not with fewer."""
        return []

    @abstractmethod
    def read_report(self, data: bytes, *, path: str) -> Any:
        """Parses the report file of a shard; raises `StorageError` if it is damaged."""

    @abstractmethod
    def worker(self, num_workers: int) -> AbstractContextManager[RunShard]:
        """Returns a context manager that yields a function to run shards in this process with `num_workers` threads."""

    @abstractmethod
    def counts_of(self, report: Any, shard: Any) -> Counts:
        """Returns the final counts of a finished shard, as in `JobProgress.counts`."""

    @abstractmethod
    def location(self, shard: Any) -> str:
        """Returns a phrase that describes the input of a shard, such as its first file."""

    def blame(self, part_prefix: str, reason: str) -> str | None:
        """Marks the last record of a dead process as bad; returns a phrase that names the record, None if unknown."""
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all settings and inputs that decide the output bytes."""
        return hash_of([self.description(), [shard.key for shard in self.shards]])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """The progress of a job.

    Attributes:
        counts: counts over all shards, including shards of earlier calls. Names for a corpus: `num_file_bytes` (read
            from files), `num_text_bytes` (after decompression), `num_documents`, `num_tokens`, `num_rejected`.
        total: size of all inputs in bytes; 0 if unknown.
        num_shards_done, num_shards: number of finished shards, and number of all shards.
    """

    counts: Counter[str]
    total: int
    num_shards_done: int
    num_shards: int


class Book(Protocol):
    """An object that receives the progress of each shard."""

    def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Sets the counts of the shard with index `number` to `counts`; `is_done` marks the shard as finished."""


class ProgressBook:
    """Sums the progress of a job over its shards, and displays it. Not thread-safe.

    Displays the count named `measure` as a part of `total` (0 if unknown); `unit` is the plural noun for both numbers.
    Calls `show` with a `JobProgress` after each update.
    """

    def __init__(
        self,
        job: ShardedJob,
        title: str,
        *,
        unit: str,
        measure: str,
        total: int,
        show: Callable[[JobProgress], None] | None = None,
    ) -> None:
        self._job = job
        self._title, self._unit, self._measure, self._total = title, unit, measure, total
        self._show = show
        self._of_shards: dict[int, Counts] = {}
        self._sums: Counter[str] = Counter()
        self._done: set[int] = set()
        self._task: Task | None = None

    @property
    def done_words(self) -> str:
        """A sentence for the user after an interrupt: how many shards are done, and how to continue."""
        num_done, num_shards, unit = len(self._done), len(self._job.shards), self._job.shard_unit
        if num_done == num_shards:
            return f"all {num_shards:,} {unit}s are done: run the same command again to assemble them"
        if num_done:
            are = "is" if num_done == 1 else "are"
            return f"{num_done:,} of {num_shards:,} {unit}s {are} done: run the same command again to continue"
        return NOTHING_WRITTEN

    def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        self._sums.subtract(self._of_shards.get(number, {}))
        self._sums.update(counts)
        self._of_shards[number] = counts
        if is_done:
            self._done.add(number)
        if self._task is not None:
            self._update_task(self._task)
        if self._show is not None:
            num_done, num_shards = len(self._done), len(self._job.shards)
            counts, total = self._sums.copy(), self._total
            self._show(JobProgress(counts=counts, total=total, num_shards_done=num_done, num_shards=num_shards))

    def add_done_shards(self, folder: JobFolder) -> int:
        """Adds the counts of all finished shards; returns how many shards are finished."""
        for shard in self._job.shards:
            if (report := folder.report(shard)) is not None:
                self.update(shard.number, self._job.counts_of(report, shard), is_done=True)
        _LOGGER.info("%d of %d shards were already done", len(self._done), len(self._job.shards))
        return len(self._done)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Displays the progress during the `with` block; the displayed speed ignores counts from before the block."""
        done = {"done": self._sums[self._measure], "num_tokens": self._sums["num_tokens"]}
        with task(self._title, unit=self._unit, total=self._total or None, **done) as self._task:
            self._update_task(self._task)
            yield

    def _update_task(self, shown: Task) -> None:
        sums, job = self._sums, self._job
        notes = [f"{sums['num_rejected']:,} rejected"] if "num_rejected" in sums else []
        if len(job.shards) > 1:
            notes.append(f"{job.shard_unit}s {len(self._done):,} of {len(job.shards):,}")
        shown.tell(sums[self._measure], total=self._total or None, num_tokens=sums["num_tokens"], notes=notes)


class Runner(Protocol):
    """A function that runs the shards of a job."""

    def __call__(self, job: ShardedJob, folder: JobFolder, book: Book) -> None:
        """Runs shards until this or other processes have done all shards; reports progress to `book`."""


def work_on_shards(
    job: ShardedJob, folder: JobFolder, *, num_workers: int, book: Book, waits_aloud: bool = True
) -> None:
    """Runs shards in this process until all shards of the job are done.

    First runs the free shards. Then waits for shards that other processes have locked (and says so if `waits_aloud`),
    and runs the shards of processes that died. Raises `FolderGoneError` if another process finished the job.
    """
    counted: set[int] = set()
    with ExitStack() as stack:
        run: RunShard | None = None
        for wait in (False, True):
            for shard in job.shards:
                if shard.number in counted:
                    continue
                if (report := folder.report(shard)) is None:
                    with ExitStack() as claim:
                        what = f"{job.shard_unit} {shard.number}, which another process is working on"
                        with waiting_for(what) if waits_aloud else nullcontext():
                            is_ours = claim.enter_context(folder.claimed(shard, wait=wait))
                        if is_ours:
                            book.update(shard.number, {})
                            run = run or stack.enter_context(job.worker(num_workers))
                            try:
                                progress = partial(book.update, shard.number)
                                report = run(shard, folder.part_prefix(shard), progress=progress)
                            except StorageError as error:
                                if folder.is_gone:
                                    raise FolderGoneError from error
                                raise
                        else:
                            report = folder.report(shard)
                if report is not None:
                    counted.add(shard.number)
                    book.update(shard.number, job.counts_of(report, shard), is_done=True)


def do_and_assemble(
    job: ShardedJob,
    folder: JobFolder,
    book: Book,
    *,
    run: Runner,
    damaged: Callable[[], Sequence[tuple[Any, str]]],
    assemble: Callable[[list[Any]], AssembledT],
    pending: Sequence[str],
) -> AssembledT:
    """Runs all shards, redoes damaged shards, and assembles the parts; returns the result of `assemble`.

    `damaged` returns the shards whose files are damaged, each with a description of the damage. `assemble` writes
    the output from the reports of all shards; `pending` are path prefixes of the local files that `assemble` writes.
    """
    while True:
        run(job, folder, book)
        # One process assembles; the others wait here until the folder is removed or shards must be redone.
        with ExitStack() as stack:
            with waiting_for(f"another process, which is assembling the parts in `{folder.path}`"):
                stack.enter_context(folder.lock("assembly.lock", pending=pending))
            problems = damaged()
            if not problems:
                assembled = assemble([report for shard in job.shards if (report := folder.report(shard)) is not None])
                folder.remove()
                return assembled
            for shard, problem in problems:
                _LOGGER.warning("redoing %s %d: %s", job.shard_unit, shard.number, problem)
                folder.forget(shard)
