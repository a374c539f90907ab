"""A job from its plan to the last file, whatever its recipe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.layout import bin_path
from tokenloom.preprocess.assembly import assemble
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.part import damaged_parts
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.sharded import JobProgress, Runner, do_and_assemble
from tokenloom.preprocess.summary import CorpusSummary, corpus_summary, is_finished, require_own_outputs
from tokenloom.progress import if_stopped
from tokenloom.storage.addresses import canonical_path, is_remote, short_hash
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.objects import scratch_folder
from tokenloom.storage.publishing import make_folder_of


def run_job(
    plan: JobPlan,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
    started: float,
) -> CorpusSummary:
    """Does what of a job is missing, alone or with others that share its folder; see `preprocess_corpus`."""
    book = plan.book(progress)
    run = runner or local_runner(
        most_processes=1 if plan.reads_streams else len(plan.shards),
        num_processes=num_processes,
        num_workers=num_workers,
        threads_per_process=plan.recipe.threads_per_process,
    )
    folder = JobFolder(_folder_path(plan, work_folder), plan)
    with if_stopped(lambda: book.done_words):
        _check_output_folder(plan)
        if restart:
            require_own_outputs(plan, overwrite=overwrite)
            folder.restart()
        if restart or not is_finished(plan):
            require_own_outputs(plan, overwrite=overwrite)
            try:
                with folder.joined():
                    num_reused = book.tell_done(folder)
                    # Where nothing is done, others may have finished it meanwhile.
                    if restart or num_reused or not is_finished(plan):
                        with book.shown():
                            reports, _ = do_and_assemble(
                                plan,
                                folder,
                                book,
                                run=run,
                                damaged=lambda: damaged_parts(plan, folder),
                                assemble=lambda reports: assemble(plan, folder, reports, overwrite=overwrite),
                                pending=[] if is_remote(plan.prefix) else [output.prefix for output in plan.outputs],
                            )
                        seconds = time.monotonic() - started
                        return corpus_summary(plan, reports, num_shards_reused=num_reused, seconds=seconds)
            except FolderGoneError as error:
                if not is_finished(plan):
                    message = f"`{folder.path}` was removed while this job was working in it"
                    raise StorageError(message, hint="run the same command again") from error
        folder.remove_remains()
    return corpus_summary(plan, seconds=time.monotonic() - started)


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
