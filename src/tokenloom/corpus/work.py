"""What processes do the shards of a corpus with."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.corpus.journal import condemn, places_at
from tokenloom.corpus.plan import JobPlan, PlannedShard
from tokenloom.corpus.progress import Counts
from tokenloom.corpus.report import ShardReport
from tokenloom.corpus.shard import ShardWorker


@dataclass(frozen=True, slots=True)
class CorpusWork:
    """The plan of a corpus, and what its shards are done with; see `jobs.protocols.SharedWork`.

    Attributes:
        plan: plan of the job.
    """

    plan: JobPlan

    def worker(self, num_workers: int) -> ShardWorker:
        """Returns what does shards in this process, with so many threads."""
        return ShardWorker(self.plan, num_workers=num_workers)

    def counts(self, **numbers: int) -> Counts:
        """Returns counts of these members; of nothing without."""
        return Counts(**numbers)

    def counts_of(self, report: ShardReport, shard: PlannedShard) -> Counts:
        """Returns what a shard that is done comes to."""
        return Counts.of_report(report, shard)

    def whereabouts(self, shard: PlannedShard) -> str:
        """Returns the file that a shard begins with, in words."""
        return f"from `{shard.slices[0].file.path}` on"

    def records_at(self, journal_path: str) -> str:
        """Returns the records, in words, that a process was at that died; empty if nothing is known of them."""
        return ", ".join(f"{number} of `{path}`" for path, number in places_at(journal_path))

    def blame(self, journal_path: str, reason: str) -> str | None:
        """Makes the record a bad one that a process was at alone, and returns it in words; None if that is not sure."""
        place = condemn(journal_path, reason)
        return None if place is None else f"`{place[0]}` record {place[1]}"
