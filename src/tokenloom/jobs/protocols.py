"""What the folder, the processes and the runners of a job ask of its plan. What a shard is, only the plan knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar


class Shard(Protocol):
    """Some of the work, done as a whole or not at all."""

    @property
    def number(self) -> int:
        """Its number from 0, in the order of the job."""

    @property
    def key(self) -> str:
        """Names what it comes to: 24 hex digits, a hash of what it is made of and of the settings that decide it."""


ShardT = TypeVar("ShardT", bound=Shard)
ReportT = TypeVar("ReportT")
"""What came out of a shard."""
CountsT = TypeVar("CountsT")
"""How far a shard is: a dataclass of numbers."""

_ShardIn = TypeVar("_ShardIn", bound=Shard, contravariant=True)
_ShardOut = TypeVar("_ShardOut", bound=Shard, covariant=True)
_ReportOut = TypeVar("_ReportOut", covariant=True)
_CountsIn = TypeVar("_CountsIn", contravariant=True)
_CountsOut = TypeVar("_CountsOut", covariant=True)


class Worker(Protocol[_ShardIn, _ReportOut, _CountsOut]):
    """Does shards, one after the other; what it holds lives as long as its `with` block."""

    def __enter__(self) -> Self:
        """Returns the worker, ready."""

    def __exit__(self, *_: object) -> None:
        """Lets go of what it holds."""

    def run(
        self, shard: _ShardIn, part_prefix: str, *, progress: Callable[[_CountsOut], None] | None = None
    ) -> _ReportOut:
        """Writes the files of a shard, then its report to `{part_prefix}.json`, and returns that.

        Args:
            shard: shard to do.
            part_prefix: what the names of its files begin with.
            progress: called often, from the calling thread.

        Raises:
            TokenloomError: it cannot be done.
        """


class SharedPlan(Protocol[_ShardOut, _ReportOut]):
    """The plan of a job. Picklable, and every process comes to the same by itself."""

    @property
    def shards(self) -> Sequence[_ShardOut]:
        """All shards, in the order of the job."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what the job does."""

    @property
    def worker_timeout_seconds(self) -> float:
        """Time after which a silent process loses its shard."""

    @property
    def reads_streams(self) -> bool:
        """Whether some of the input can be read once only, and by this process alone."""

    def description(self) -> dict[str, Any]:
        """Returns what processes that share the job must agree on, but for the inputs, as values for JSON."""

    def input_keys(self) -> list[str]:
        """Returns a short hash of each input, sorted: a job may go on with more inputs, but not with fewer."""

    def read_report(self, data: bytes, *, path: str) -> _ReportOut:
        """Returns the report in a file.

        Raises:
            StorageError: it is not one.
        """


class SharedWork(Protocol[ShardT, ReportT, _CountsOut]):
    """A plan, and what its shards are done with. Picklable."""

    @property
    def plan(self) -> SharedPlan[ShardT, ReportT]:
        """The plan of the job."""

    def worker(self, num_workers: int) -> Worker[ShardT, ReportT, _CountsOut]:
        """Returns what does shards in this process, with so many threads."""

    def counts(self, **numbers: int) -> _CountsOut:
        """Returns counts of these members; of nothing without."""

    def counts_of(self, report: ReportT, shard: ShardT) -> _CountsOut:
        """Returns what a shard that is done comes to."""

    def whereabouts(self, shard: ShardT) -> str:
        """Returns what a person finds a shard by, such as its first input."""

    def records_at(self, journal_path: str) -> str:
        """Returns the records, in words, that a process was at that died; empty if nothing is known of them."""

    def blame(self, journal_path: str, reason: str) -> str | None:
        """Makes the record a bad one that a process was at alone, and that it died of.

        Args:
            journal_path: path of what the process had noted.
            reason: why it is bad.

        Returns:
            the record, in words; None if that is not certain.
        """


class Book(Protocol[_CountsIn]):
    """Hears how far shards are."""

    def tell(self, number: int, counts: _CountsIn, *, is_done: bool = False) -> None:
        """Notes how far the shard of a number is; what was told of it before is forgotten."""
