"""A process's share of a job: shards that nobody else works on, until all are done."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Protocol

from tokenloom.corpus.folder import JobFolder
from tokenloom.corpus.plan import JobPlan
from tokenloom.corpus.progress import Counts
from tokenloom.corpus.shard import ShardWorker
from tokenloom.progress import waiting_for


class Tell(Protocol):
    """Hears how far a shard is."""

    def __call__(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Takes note of the number of a shard, what was done of it, and whether that is all."""


def work_on_shards(plan: JobPlan, folder: JobFolder, *, num_workers: int, tell: Tell, waits_aloud: bool = True) -> None:
    """Returns when all shards of the job are done, by this process or by others.

    First come the shards that are free, then those that others hold: it waits for these, and does what a dead process
    leaves behind.

    Args:
        plan: plan of the job.
        folder: folder of the job, joined.
        num_workers: threads.
        tell: hears of every step.
        waits_aloud: whether it is said that others are waited for; not of one of several processes, where these are
            the others.

    Raises:
        FolderGoneError: the job was finished meanwhile.
        TokenloomError: see `ShardWorker.run`.
    """
    told: set[int] = set()
    with ExitStack() as stack:
        worker: ShardWorker | None = None
        for wait in (False, True):
            for shard in plan.shards:
                number = shard.number
                if number in told:
                    continue
                if (report := folder.report(shard)) is None:
                    with ExitStack() as claim:
                        what = f"shard {number}, which another process works on"
                        with waiting_for(what) if waits_aloud else nullcontext():
                            is_ours = claim.enter_context(folder.claimed(shard, wait=wait))
                        if is_ours:
                            tell(number, Counts())
                            if worker is None:
                                worker = stack.enter_context(ShardWorker(plan, num_workers=num_workers))
                            with folder.gone_told():
                                report = worker.run(shard, folder.part_prefix(shard), progress=partial(tell, number))
                        else:
                            report = folder.report(shard)
                if report is not None:
                    told.add(number)
                    tell(number, Counts.of_report(report, shard), is_done=True)
