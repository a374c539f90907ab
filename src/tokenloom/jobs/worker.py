"""A process's share of a job: shards that nobody else works on, until all are done."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial

from tokenloom.jobs.folder import JobFolder
from tokenloom.jobs.protocols import CountsT, ReportT, ShardT, SharedWork, Tell, Worker
from tokenloom.progress import waiting_for


def work_on_shards(
    work: SharedWork[ShardT, ReportT, CountsT],
    folder: JobFolder[ShardT, ReportT],
    *,
    num_workers: int,
    tell: Tell[CountsT],
    waits_aloud: bool = True,
) -> None:
    """Returns when all shards of the job are done, by this process or by others.

    First come the shards that are free, then those that others hold: it waits for these, and does what a dead process
    leaves behind.

    Args:
        work: the job's plan, and what does its shards.
        folder: folder of the job, joined.
        num_workers: threads.
        tell: hears of every step.
        waits_aloud: whether it is said that others are waited for; not of one of several processes, where these are
            the others.

    Raises:
        FolderGoneError: the job was finished meanwhile.
        TokenloomError: a shard cannot be done.
    """
    told: set[int] = set()
    with ExitStack() as stack:
        worker: Worker[ShardT, ReportT, CountsT] | None = None
        for wait in (False, True):
            for shard in work.plan.shards:
                number = shard.number
                if number in told:
                    continue
                if (report := folder.report(shard)) is None:
                    with ExitStack() as claim:
                        what = f"shard {number}, which another process works on"
                        with waiting_for(what) if waits_aloud else nullcontext():
                            is_ours = claim.enter_context(folder.claimed(shard, wait=wait))
                        if is_ours:
                            tell(number, work.counts())
                            if worker is None:
                                worker = stack.enter_context(work.worker(num_workers))
                            with folder.gone_told():
                                report = worker.run(shard, folder.part_prefix(shard), progress=partial(tell, number))
                        else:
                            report = folder.report(shard)
                if report is not None:
                    told.add(number)
                    tell(number, work.counts_of(report, shard), is_done=True)
