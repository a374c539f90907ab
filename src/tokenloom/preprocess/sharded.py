"""Work in shards: any free process does the next one; in the end one process assembles all parts.

A job defines its shards: some of the input of a corpus, or rows of a table.
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
"""Progress of a shard: numbers by name, such as `num_tokens`."""

RunShard = Callable[..., Any]
"""`run(shard, part_prefix, progress=None)`: writes the files of a shard, then its report to `{part_prefix}.json`, and
returns the report. `progress` is called often with `Counts`, from the calling thread."""


def hash_of(value: Any) -> str:
    """Returns a hash of values for JSON: 24 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


class ShardedJob(ABC):
    """A job as its folder, processes and runners see it. Picklable, and equal in every process.

    A shard has a `number` from 0, in the order of the job, and a `key`: 24 hex digits, a hash of its inputs and of the
    settings that decide its bytes.

    Attributes:
        shard_unit: name of a shard in messages.
    """

    shard_unit: ClassVar[str] = "shard"

    @property
    @abstractmethod
    def shards(self) -> Sequence[Any]:
        """All shards, in order."""

    @property
    def worker_timeout_seconds(self) -> float:
        """Time without a heartbeat after which a process loses its shard."""
        return 600.0

    @property
    def reads_streams(self) -> bool:
        """Whether some input can be read once only, by this process alone."""
        return False

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Returns the settings that processes of the job must share, as values for JSON."""

    def input_keys(self) -> list[str]:
        """Returns a short hash of each input, sorted: a job may resume with more inputs, but not with fewer."""
        return []

    @abstractmethod
    def read_report(self, data: bytes, *, path: str) -> Any:
        """Returns the report of a shard in a file; a `StorageError` where it is none."""

    @abstractmethod
    def worker(self, num_workers: int) -> AbstractContextManager[RunShard]:
        """Returns the function that does shards in this process, one after the other, with so many threads."""

    @abstractmethod
    def counts_of(self, report: Any, shard: Any) -> Counts:
        """Returns the counts of a shard that is done."""

    @abstractmethod
    def whereabouts(self, shard: Any) -> str:
        """Returns a phrase that says where a shard is, such as its first input."""

    def blame(self, journal_path: str, reason: str) -> str | None:
        """Makes the record bad for a `reason` that a process died at; returns its name, None if it is not known."""
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the settings and inputs that decide the bytes."""
        return hash_of([self.description(), [shard.key for shard in self.shards]])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """Progress of a job.

    Attributes:
        counts: counts of all shards, those of earlier runs included: of a corpus `num_file_bytes` (of the input files,
            compressed as they may be), `num_text_bytes` (decompressed), `num_documents`, `num_tokens`, `num_rejected`.
        total: size of all inputs in bytes; 0 if that is not known.
        num_shards_done, num_shards: number of shards that are done, and of all.
    """

    counts: Counter[str]
    total: int
    num_shards_done: int
    num_shards: int


class Book(Protocol):
    """Receives the progress of shards."""

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Replaces the counts of the shard of a number."""


class ProgressBook:
    """Sums the progress of shards. Not safe from several threads.

    Args:
        job: job of the shards.
        title: name of the work.
        unit, measure: unit of progress, in the plural, and its name in the counts.
        total: total number of units; 0 if that is not known.
        show: called with every change.
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
        """How many shards are done, and how to go on after an interrupt."""
        num_done, num_shards, unit = len(self._done), len(self._job.shards), self._job.shard_unit
        if num_done == num_shards:
            return f"all {num_shards:,} {unit}s are done: run the same command again to put them together"
        if num_done:
            are = "is" if num_done == 1 else "are"
            return f"{num_done:,} of {num_shards:,} {unit}s {are} done: run the same command again to go on"
        return NOTHING_WRITTEN

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        self._sums.subtract(self._of_shards.get(number, {}))
        self._sums.update(counts)
        self._of_shards[number] = counts
        if is_done:
            self._done.add(number)
        if self._task is not None:
            self._tell_task(self._task)
        if self._show is not None:
            num_done, num_shards = len(self._done), len(self._job.shards)
            counts, total = self._sums.copy(), self._total
            self._show(JobProgress(counts=counts, total=total, num_shards_done=num_done, num_shards=num_shards))

    def tell_done(self, folder: JobFolder) -> int:
        """Tells the shards that are done; returns their number."""
        done = [(shard, report) for shard in self._job.shards if (report := folder.report(shard)) is not None]
        for shard, report in done:
            self.tell(shard.number, self._job.counts_of(report, shard), is_done=True)
        _LOGGER.info("%d of %d shards were done before", len(done), len(self._job.shards))
        return len(done)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the progress while the `with` block lasts; shards that were told before count as done before."""
        done = {"done": self._sums[self._measure], "num_tokens": self._sums["num_tokens"]}
        with task(self._title, unit=self._unit, total=self._total or None, **done) as self._task:
            self._tell_task(self._task)
            yield

    def _tell_task(self, shown: Task) -> None:
        sums, job = self._sums, self._job
        notes = [f"{sums['num_rejected']:,} rejected"] if "num_rejected" in sums else []
        if len(job.shards) > 1:
            notes.append(f"{job.shard_unit}s {len(self._done):,} of {len(job.shards):,}")
        shown.tell(sums[self._measure], total=self._total or None, num_tokens=sums["num_tokens"], notes=notes)


class Runner(Protocol):
    """Runs the shards of a job."""

    def __call__(self, job: ShardedJob, folder: JobFolder, book: Book) -> None:
        """Returns when all shards are done, here or elsewhere; tells the book of every step."""


def work_on_shards(
    job: ShardedJob, folder: JobFolder, *, num_workers: int, book: Book, waits_aloud: bool = True
) -> None:
    """Returns when all shards of the job are done, by this process or by others.

    First come the free shards, then those that other processes hold: it waits for these, and does those of a process
    that dies. Raises a `FolderGoneError` if the job was finished meanwhile.
    """
    told: set[int] = set()
    with ExitStack() as stack:
        run: RunShard | None = None
        for wait in (False, True):
            for shard in job.shards:
                if shard.number in told:
                    continue
                if (report := folder.report(shard)) is None:
                    with ExitStack() as claim:
                        what = f"{job.shard_unit} {shard.number}, which another process works on"
                        with waiting_for(what) if waits_aloud else nullcontext():
                            is_ours = claim.enter_context(folder.claimed(shard, wait=wait))
                        if is_ours:
                            book.tell(shard.number, {})
                            run = run or stack.enter_context(job.worker(num_workers))
                            try:
                                tell = partial(book.tell, shard.number)
                                report = run(shard, folder.part_prefix(shard), progress=tell)
                            except StorageError as error:
                                if folder.is_gone:
                                    raise FolderGoneError from error
                                raise
                        else:
                            report = folder.report(shard)
                if report is not None:
                    told.add(shard.number)
                    book.tell(shard.number, job.counts_of(report, shard), is_done=True)


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
    """Runs all shards and assembles their parts; returns the result of `assemble`.

    Args:
        job: job to do.
        folder: folder of the job, joined.
        book: receives the progress.
        run: runs the shards.
        damaged: returns the shards with damaged files, and the damage: they are done again.
        assemble: makes the output of the reports, and of the files beside them.
        pending: prefixes of the paths that it writes on this machine.
    """
    while True:
        run(job, folder, book)
        # One process alone reads the parts; the others wait here until the folder is gone, or shards are damaged.
        with ExitStack() as held:
            with waiting_for(f"another process, which puts the parts in `{folder.path}` together"):
                held.enter_context(folder.lock("assembly.lock", pending=pending))
            problems = damaged()
            if not problems:
                assembled = assemble([report for shard in job.shards if (report := folder.report(shard)) is not None])
                folder.remove()
                return assembled
            for shard, problem in problems:
                _LOGGER.warning("%s %d is done again: %s", job.shard_unit, shard.number, problem)
                folder.forget(shard)
