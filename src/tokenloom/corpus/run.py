"""A corpus into datasets, from the first look at the inputs to the last file."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenloom.corpus.assembly import assemble
from tokenloom.corpus.finished import finished_summary, require_own_outputs
from tokenloom.corpus.folder import FolderGoneError, JobFolder
from tokenloom.corpus.parts import damaged_parts
from tokenloom.corpus.plan import CorpusPlan, plan_corpus
from tokenloom.corpus.processes import work_in_processes
from tokenloom.corpus.progress import CorpusProgress, ProgressBook
from tokenloom.corpus.report import ShardReport
from tokenloom.corpus.settings import CorpusSettings
from tokenloom.corpus.summary import CorpusSummary, OutputSummary, corpus_summary
from tokenloom.corpus.worker import work_on_shards
from tokenloom.errors import ConfigError, StorageError
from tokenloom.numbers import checked_integer
from tokenloom.preprocess.threads import usable_processors
from tokenloom.storage.addresses import canonical_path, is_remote, short_hash
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.copies import scratch_folder
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_LOGGER = logging.getLogger(__name__)
_MOST_THREADS = 8
"""That one process feeds: the thread that reads and writes for them needs about a sixth of the time of each."""


def preprocess_corpus(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: CorpusSettings | None = None,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[CorpusProgress], None] | None = None,
) -> CorpusSummary:
    """Tokenises a corpus into `PREFIX_KEY_document.bin` and `.idx`, and a manifest beside them, for each key.

    The input is cut into shards, a function of the inputs and `shard_bytes` alone. Each is tokenised into a part in
    `PREFIX.job` that appears whole; in the end the parts become the datasets, all at once, and the folder goes. The
    same call again, after whatever ended an earlier one, does what is missing only; on several machines that share the
    folder, all take part. The order of the documents is kept, and the bytes depend on neither the number of
    processes and threads, nor on `shard_bytes`, `block_bytes`, the engine or the runner.

    Memory: some 120 MB per process and 60 MB per thread, more for text in which nearly all words are new; whatever the
    size of the input. A record of which the engine would need more than `memory_bytes` is a bad record.

    Args:
        inputs: files, folders, patterns, addresses, `@list` or `-`, see `find_inputs`.
        output_prefix: of the outputs; their folder must exist. With `one_pair_per_file` it is the folder, which is
            made.
        tokenizer: from `load_tokenizer`.
        settings: see `CorpusSettings`.
        num_processes: on this machine; None for one per eight threads, or one per thread for work in pure Python.
        num_workers: threads of each process; None to use all processors.
        runner: does the shards in another way, such as `RayRunner`.
        work_folder: where the parts lie instead of `PREFIX.job`; needed for outputs in object storage.
        restart: give up what an earlier call did and did not finish, and begin anew.
        overwrite: replace datasets that are there and were not made by this very job; they stay whole until the new
            ones are complete.
        progress: called often, from the calling thread.

    Raises:
        ConfigError: a setting is wrong, or an unfinished job with other settings or inputs is in the folder.
        OutputExistsError: there are other datasets under these names, and no `overwrite`.
        OutputBusyError: another process writes one of them.
        InputError: the input is bad, has no documents, or changed meanwhile.
        TokenizerError: there is no `bos` or `eod` to add, or the engine asked for cannot be used.
        WorkerError: processes keep dying.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    plan = plan_corpus(names, output_prefix, tokenizer, settings or CorpusSettings())
    run = runner or local_runner(plan, num_processes=num_processes, num_workers=num_workers)
    _check_output_folder(plan)
    folder = JobFolder(_folder_path(plan, work_folder), plan)
    if restart:
        require_own_outputs(plan, overwrite=overwrite)
        folder.restart()
    elif (summary := finished_summary(plan, seconds=time.monotonic() - started)) is not None:
        folder.remove_remains()
        return summary
    require_own_outputs(plan, overwrite=overwrite)
    try:
        with folder.joined():
            num_reused = sum(folder.report(shard) is not None for shard in plan.shards)
            # Somebody may have finished the job between the first look and joining.
            if not (num_reused or restart) and (summary := finished_summary(plan, seconds=time.monotonic() - started)):
                return summary
            _LOGGER.info("%d of %d shards were done before", num_reused, len(plan.shards))
            reports, outputs = _work(plan, folder, run, ProgressBook(plan.shards, progress), overwrite=overwrite)
        return _summary(plan, reports, outputs, num_reused=num_reused, seconds=time.monotonic() - started)
    except FolderGoneError as error:
        summary = finished_summary(plan, seconds=time.monotonic() - started)
        if summary is not None:
            return summary
        message = f"`{folder.path}` was removed while this job was working in it"
        raise StorageError(message, hint="run the same command again") from error


class Runner(Protocol):
    """Does the shards of a job."""

    def __call__(self, plan: CorpusPlan, folder: JobFolder, book: ProgressBook) -> None:
        """Returns when all shards are done, by it or by others; tells the book of every step."""


def local_runner(plan: CorpusPlan, *, num_processes: int | None, num_workers: int | None) -> Runner:
    """Returns what works on this machine: in this process, or in several.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, number in (("process", num_processes), ("worker", num_workers)):
        if number is not None and checked_integer(f"num_{name}", number) < 1:
            message = f"expected at least 1 {name}, got {number!r}"
            raise ConfigError(message)
    num_processors = usable_processors()
    threads_each = 1 if plan.settings.split_sentences else _MOST_THREADS
    processes = num_processes or max(1, num_processors // (num_workers or threads_each))
    processes = 1 if plan.reads_streams else min(processes, len(plan.shards))
    workers = num_workers or max(1, num_processors // processes)

    def run(plan: CorpusPlan, folder: JobFolder, book: ProgressBook) -> None:
        suspects = any(os.path.exists(folder.journal_path(shard)) for shard in plan.shards)
        if processes == 1 and not (suspects and not plan.reads_streams):  # this process must not die of a record
            work_on_shards(plan, folder, num_workers=workers, tell=book.tell)
        else:
            work_in_processes(plan, folder, num_processes=processes, num_workers=workers, book=book)

    return run


def _work(
    plan: CorpusPlan, folder: JobFolder, run: Runner, book: ProgressBook, *, overwrite: bool
) -> tuple[list[ShardReport], list[OutputSummary]]:
    """Returns the reports of all shards, and what became of them, once the folder is gone."""
    while True:
        run(plan, folder, book)
        # One process alone reads the parts; the others wait here until the folder is gone, or something is to be done.
        with folder.lock("assembly.lock", pending=_written(plan)):
            damaged = damaged_parts(plan, folder)
            if not damaged:
                reports = [report for shard in plan.shards if (report := folder.report(shard)) is not None]
                outputs = assemble(plan, folder, reports, overwrite=overwrite)
                folder.remove()
                return reports, outputs
            for shard, problem in damaged:
                _LOGGER.warning("shard %d is done again: %s", shard.number, problem)
                folder.forget(shard)


def _written(plan: CorpusPlan) -> list[str]:
    """Returns what the paths begin with that the assembly writes here."""
    return [] if is_remote(plan.prefix) else [output.prefix for output in plan.outputs]


def _check_output_folder(plan: CorpusPlan) -> None:
    """Looks before the work whether the datasets can be written; the folder of a pair per file is made.

    Raises:
        StorageError: there is no such folder, or nothing can be written there.
    """
    if is_remote(plan.prefix):
        return
    if plan.settings.one_pair_per_file:
        with storage_errors("create", plan.prefix):
            os.makedirs(plan.prefix, exist_ok=True)
    prefix = plan.outputs[0].prefix
    with storage_errors("write to the folder of", prefix), tempfile.TemporaryFile(dir=os.path.dirname(prefix) or "."):
        pass


def _folder_path(plan: CorpusPlan, work_folder: str | os.PathLike[str] | None) -> str:
    """Returns where the parts lie: beside the outputs, so that they can become them without being copied."""
    name = f"{os.path.basename(plan.prefix) or 'corpus'}.job"
    if work_folder is not None:  # which jobs of other prefixes may share
        return os.path.join(os.fspath(work_folder), f"{short_hash(canonical_path(plan.prefix))[:8]}-{name}")
    if is_remote(plan.prefix):
        return os.path.join(scratch_folder(plan.prefix), name)
    return f"{plan.prefix.rstrip(os.sep)}.job"


def _summary(
    plan: CorpusPlan,
    reports: Sequence[ShardReport],
    outputs: Sequence[OutputSummary],
    *,
    num_reused: int,
    seconds: float,
) -> CorpusSummary:
    engines = {report.engine: report.engine_reason for report in reports}
    return corpus_summary(
        plan,
        outputs,
        num_shards_reused=num_reused,
        was_complete=False,
        num_doubled=sum(report.num_doubled for report in reports),
        num_text_bytes=sum(report.num_text_bytes for report in reports),
        engine=", ".join(engines),
        engine_reason="; ".join(engines.values()),
        seconds=seconds,
    )
