"""Work in shards: each is done once, by whichever process is free; then one process puts together what came out.

What a shard is, its job knows: some of the input of a corpus, or rows of a table.
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
"""How far a shard is: numbers by name, such as `num_tokens`."""

RunShard = Callable[..., Any]
"""`run(shard, part_prefix, progress=None)`: writes the files of a shard, then its report to `{part_prefix}.json`, and
returns that. `progress` is called often with `Counts`, from the calling thread."""


def hash_of(value: Any) -> str:
    """Returns a hash of values for JSON: 24 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


class ShardedJob(ABC):
    """What the folder, the processes and the runners of a job ask of it. Picklable, and every process makes the same.

    A shard has a `number` from 0, in the order of the job, and a `key`: 24 hex digits, a hash of what it is made of and
    of the settings that decide it.

    Attributes:
        shard_unit: what the job calls a shard.
    """

    shard_unit: ClassVar[str] = "shard"

    @property
    @abstractmethod
    def shards(self) -> Sequence[Any]:
        """All shards, in order."""

    @property
    def worker_timeout_seconds(self) -> float:
        """Time after which a silent process loses its shard."""
        return 600.0

    @property
    def reads_streams(self) -> bool:
        """Whether some of the input can be read once only, and by this process alone."""
        return False

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Returns what processes that share the job must agree on, but for the inputs, as values for JSON."""

    def input_keys(self) -> list[str]:
        """Returns a short hash of each input, sorted: a job may go on with more inputs, but not with fewer."""
        return []

    @abstractmethod
    def read_report(self, data: bytes, *, path: str) -> Any:
        """Returns the report of a shard in a file.

        Raises:
            StorageError: it is not one.
        """

    @abstractmethod
    def worker(self, num_workers: int) -> AbstractContextManager[RunShard]:
        """Returns what does shards in this process, one after the other, with so many threads."""

    @abstractmethod
    def counts_of(self, report: Any, shard: Any) -> Counts:
        """Returns what a shard that is done comes to."""

    @abstractmethod
    def whereabouts(self, shard: Any) -> str:
        """Returns what a person finds a shard by, such as its first input."""

    def blame(self, journal_path: str, reason: str) -> str | None:
        """Makes the record a bad one that a process was at alone, and that it died of.

        Args:
            journal_path: path of what the process had noted.
            reason: why it is bad.

        Returns:
            the record, in words; None if that is not certain.
        """
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides what the job does."""
        return hash_of([self.description(), [shard.key for shard in self.shards]])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job is.

    Attributes:
        counts: counts of all shards, those of earlier runs included: of a corpus `num_file_bytes` (of the input files,
            compressed as they may be), `num_text_bytes` (decompressed), `num_documents`, `num_tokens`, `num_rejected`;
            0 for what was not told yet.
        total: size of all inputs in bytes; 0 if that is not known.
        num_shards_done, num_shards: number of shards that are done, and of all.
    """

    counts: Counter[str]
    total: int
    num_shards_done: int
    num_shards: int


class Book(Protocol):
    """Hears how far shards are."""

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Notes how far the shard of a number is; what was told of it before is forgotten."""


class ProgressBook:
    """Adds up what processes tell of their shards. Not safe from several threads.

    Args:
        job: whose shards they are.
        title: what is done, in a few words.
        unit, measure: what of it is counted, in the plural, and under which name.
        total: how much there is of it; 0 if that is not known.
        show: called with every change; None for nobody.
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
        """How many shards are done, and what that means to somebody who stops the job here."""
        num_done, num_shards, unit = len(self._done), len(self._job.shards), self._job.shard_unit
        if num_done == num_shards:
            return f"all {num_shards:,} {unit}s are done: run the same command again to put them together"
        if num_done:
            are = "is" if num_done == 1 else "are"
            return f"{num_done:,} of {num_shards:,} {unit}s {are} done: run the same command again to go on"
        return NOTHING_WRITTEN

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Notes how far the shard of a number is; what was told of it before is forgotten."""
        self._sums.subtract(self._of_shards.get(number, {}))
        self._sums.update(counts)
        self._of_shards[number] = counts
        if is_done:
            self._done.add(number)
        if self._task is not None:
            self._tell_task(self._task)
        if self._show is not None:
            self._show(
                JobProgress(
                    counts=self._sums.copy(),
                    total=self._total,
                    num_shards_done=len(self._done),
                    num_shards=len(self._job.shards),
                )
            )

    def tell_done(self, folder: JobFolder) -> int:
        """Notes the shards that are done; returns their number."""
        done = [(shard, report) for shard in self._job.shards if (report := folder.report(shard)) is not None]
        for shard, report in done:
            self.tell(shard.number, self._job.counts_of(report, shard), is_done=True)
        _LOGGER.info("%d of %d shards were done before", len(done), len(self._job.shards))
        return len(done)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows to whoever looks on how far the job is, for as long as the `with` block lasts; what was told before is
        what was done before."""
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
    """Does the shards of a job."""

    def __call__(self, job: ShardedJob, folder: JobFolder, book: Book) -> None:
        """Returns when all shards are done, by it or by others; tells the book of every step."""


def work_on_shards(
    job: ShardedJob, folder: JobFolder, *, num_workers: int, book: Book, waits_aloud: bool = True
) -> None:
    """Returns when all shards of the job are done, by this process or by others.

    First come the shards that are free, then those that others hold: it waits for these, and does what a dead process
    leaves behind. A `FolderGoneError` says that the job was finished meanwhile.
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
) -> tuple[list[Any], AssembledT]:
    """Returns the reports of all shards, and what became of them, once the folder is gone.

    Args:
        job: what is done.
        folder: folder of the job, joined.
        book: hears of every step.
        run: does the shards.
        damaged: returns the shards whose files are not what was written, and in what: they are done again.
        assemble: makes of the reports, and of the files beside them, what the job is for.
        pending: beginnings of the paths that it writes on this machine.
    """
    while True:
        run(job, folder, book)
        # One process alone reads the parts; the others wait here until the folder is gone, or something is to be done.
        with ExitStack() as held:
            with waiting_for(f"another process, which puts the parts in `{folder.path}` together"):
                held.enter_context(folder.lock("assembly.lock", pending=pending))
            problems = damaged()
            if not problems:
                reports = [report for shard in job.shards if (report := folder.report(shard)) is not None]
                assembled = assemble(reports)
                folder.remove()
                return reports, assembled
            for shard, problem in problems:
                _LOGGER.warning("%s %d is done again: %s", job.shard_unit, shard.number, problem)
                folder.forget(shard)
