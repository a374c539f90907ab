"""A job from its plan to the last file, whatever its recipe."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.layout import bin_path
from tokenloom.preprocess.assembly import assemble
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.part import ShardReport, damaged_parts
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.sharded import JobProgress, ProgressBook, Runner, do_and_assemble
from tokenloom.preprocess.summary import CorpusSummary, corpus_summary, finished_summary, require_own_outputs
from tokenloom.progress import if_stopped
from tokenloom.storage.addresses import canonical_path, is_remote, short_hash
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.objects import scratch_folder
from tokenloom.storage.publishing import make_folder_of

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job did.

    Attributes:
        summary: what the job did, in numbers.
        reports: reports of its shards; none where another call finished it.
    """

    summary: CorpusSummary
    reports: tuple[ShardReport, ...] = ()

    def number(self, name: str) -> int:
        """Returns one of the recipe's own numbers, of all shards; 0 without reports."""
        return sum(report.numbers.get(name, 0) for report in self.reports)


def run_job(
    plan: JobPlan,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    makes_again: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
    started: float,
) -> JobResult:
    """Does what of a job is missing, alone or with others that share its folder; see `preprocess_corpus`.

    With `makes_again`, datasets that this very job made are not left as they are. `started` is by the monotonic clock.

    Raises:
        TokenloomError: see `preprocess_corpus`.
    """
    book = plan.book(progress)
    run = runner or corpus_runner(plan, num_processes=num_processes, num_workers=num_workers)
    folder = JobFolder(_folder_path(plan, work_folder), plan)
    makes_again = makes_again or plan.recipe.compares_bytes
    with if_stopped(lambda: book.done_words):
        _check_output_folder(plan)
        if restart:
            require_own_outputs(plan, overwrite=overwrite)
            folder.restart()
        while True:
            if not (restart or makes_again) and (found := _finished(plan, started)) is not None:
                folder.remove_remains()
                return found
            require_own_outputs(plan, overwrite=overwrite)
            try:
                with folder.joined():
                    looks = not (restart or makes_again)
                    return _work(plan, folder, run, book, looks=looks, overwrite=overwrite, started=started)
            except FolderGoneError as error:
                found, known = _finished(plan, started), folder.known_reports()
                if found is not None and (known or not plan.recipe.compares_bytes):
                    return replace(found, reports=known)
                if found is None:
                    message = f"`{folder.path}` was removed while this job was working in it"
                    raise StorageError(message, hint="run the same command again") from error
            # Finished by others, who told too little of it to say what they did.
            restart, makes_again = False, plan.recipe.compares_bytes
            folder = JobFolder(folder.path, plan)


def _work(
    plan: JobPlan,
    folder: JobFolder,
    run: Runner,
    book: ProgressBook,
    *,
    looks: bool,
    overwrite: bool,
    started: float,
) -> JobResult:
    """Does what of a job is missing, in its folder, which is joined; `looks` first whether others have finished it."""
    num_reused = 0
    for shard in plan.shards:
        if (report := folder.report(shard)) is not None:
            num_reused += 1
            book.tell(shard.number, plan.counts_of(report, shard), is_done=True)
    if looks and not num_reused and (found := _finished(plan, started)) is not None:
        return found
    _LOGGER.info("%d of %d shards were done before", num_reused, len(plan.shards))
    with book.shown():
        reports, (outputs, were_there) = do_and_assemble(
            plan,
            folder,
            book,
            run=run,
            damaged=lambda: damaged_parts(plan, folder),
            assemble=lambda reports: assemble(plan, folder, reports, overwrite=overwrite),
            pending=[] if is_remote(plan.prefix) else [output.prefix for output in plan.outputs],
        )
    engines = {report.engine: report.engine_reason for report in reports}
    summary = corpus_summary(
        plan,
        outputs,
        num_shards_reused=num_reused,
        was_complete=were_there,
        num_doubled=sum(report.num_doubled for report in reports),
        num_text_bytes=sum(report.num_text_bytes for report in reports),
        engine=", ".join(engines),
        engine_reason="; ".join(engines.values()),
        seconds=time.monotonic() - started,
    )
    return JobResult(summary=summary, reports=tuple(reports))


def _finished(plan: JobPlan, started: float) -> JobResult | None:
    summary = finished_summary(plan, seconds=time.monotonic() - started)
    return None if summary is None else JobResult(summary=summary)


def corpus_runner(plan: JobPlan, *, num_processes: int | None, num_workers: int | None) -> Runner:
    """Returns what works on this machine; see `local_runner`.

    Raises:
        ConfigError: a number is below 1.
    """
    return local_runner(
        most_processes=1 if plan.reads_streams else len(plan.shards),
        num_processes=num_processes,
        num_workers=num_workers,
        threads_per_process=plan.recipe.threads_per_process,
    )


def _check_output_folder(plan: JobPlan) -> None:
    """Looks before the work whether the datasets can be written; their folder is made, where there is none."""
    if is_remote(plan.prefix):
        return
    if os.path.basename(plan.prefix) in (".", ".."):  # else hidden files would be written
        message = f"expected an output prefix that ends in a name, found {plan.prefix!r}"
        raise ConfigError(message, hint=f"such as `{plan.prefix}/corpus`")
    prefix = plan.outputs[0].prefix
    make_folder_of(prefix)
    PendingFile(bin_path(prefix)).discard()


def _folder_path(plan: JobPlan, work_folder: str | os.PathLike[str] | None) -> str:
    """Returns where the parts lie: beside the outputs, so that they can become them without being copied."""
    name = f"{os.path.basename(plan.prefix) or 'corpus'}.job"
    if work_folder is not None:  # which jobs of other prefixes may share
        return os.path.join(os.fspath(work_folder), f"{short_hash(canonical_path(plan.prefix))[:8]}-{name}")
    if is_remote(plan.prefix):
        return os.path.join(scratch_folder(plan.prefix), name)
    return f"{plan.prefix.rstrip(os.sep)}.job"
