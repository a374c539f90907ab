"""How far a job is, over all processes that work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

from tokenloom.corpus.plan import PlannedShard
from tokenloom.corpus.report import ShardReport
from tokenloom.jobs.running import done_words
from tokenloom.progress import Task, task


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was done so far.

    Attributes:
        num_file_bytes: size of the input files in bytes, compressed as they may be.
        num_text_bytes: size after decompression in bytes.
        num_documents, num_tokens: written.
        num_rejected: bad records set aside.
    """

    num_file_bytes: int = 0
    num_text_bytes: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    num_rejected: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    def __sub__(self, other: Self) -> Self:
        return type(self)(
            **{field.name: getattr(self, field.name) - getattr(other, field.name) for field in fields(self)}
        )

    @classmethod
    def of_report(cls, report: ShardReport, shard: PlannedShard) -> Self:
        """Returns what a shard that is done comes to."""
        return cls(
            num_file_bytes=shard.num_bytes,
            num_text_bytes=report.num_text_bytes,
            num_documents=report.num_documents,
            num_tokens=report.num_tokens,
            num_rejected=report.num_rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusProgress:
    """How far a job is.

    Attributes:
        counts: counts of all shards, those of earlier runs included.
        total_file_bytes: size of all inputs; 0 if that is not known.
        num_shards_done, num_shards: number of shards that are done, and of all.
    """

    counts: Counts
    total_file_bytes: int
    num_shards_done: int
    num_shards: int


class ProgressBook:
    """Adds up what processes tell of their shards. Not safe from several threads.

    Args:
        shards: shards of the job.
        show: called with every change; None for nobody.
    """

    def __init__(self, shards: tuple[PlannedShard, ...], show: Callable[[CorpusProgress], None] | None) -> None:
        self._show = show
        self._total_file_bytes = sum(shard.num_bytes for shard in shards)
        self._num_shards = len(shards)
        self._of_shards: dict[int, Counts] = {}
        self._sum = Counts()
        self._done: set[int] = set()
        self._task: Task | None = None

    @property
    def done_words(self) -> str:
        """How many shards are done, and what that means to somebody who stops the job here."""
        return done_words(len(self._done), self._num_shards)

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Notes how far the shard of a number is; what was told of it before is forgotten."""
        self._sum = self._sum + counts - self._of_shards.get(number, Counts())
        self._of_shards[number] = counts
        if is_done:
            self._done.add(number)
        if self._task is not None:
            self._tell_task(self._task)
        if self._show is not None:
            self._show(
                CorpusProgress(
                    counts=self._sum,
                    total_file_bytes=self._total_file_bytes,
                    num_shards_done=len(self._done),
                    num_shards=self._num_shards,
                )
            )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows to whoever looks on how far the job is, for as long as the `with` block lasts; what was told before is
        what was done before."""
        begun = self._sum
        total = self._total_file_bytes or None
        done = {"done": begun.num_file_bytes, "num_tokens": begun.num_tokens}
        with task("preprocess", unit="bytes", total=total, **done) as self._task:
            self._tell_task(self._task)
            yield

    def _tell_task(self, task: Task) -> None:
        notes = [f"{self._sum.num_rejected:,} rejected"]
        if self._num_shards > 1:
            notes.append(f"shards {len(self._done):,} of {self._num_shards:,}")
        total = self._total_file_bytes or None
        task.tell(self._sum.num_file_bytes, total=total, num_tokens=self._sum.num_tokens, notes=notes)
