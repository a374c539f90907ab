"""Runs the shards of a job on a Ray cluster whose machines share the job's folder and the inputs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError, TokenloomError, WorkerError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.sharded import Book, RunShard, ShardedJob
from tokenloom.storage.secrets import known_queries, remember

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRunner:
    """A runner that executes each shard as a Ray task, on all processors of the cluster.

    The output has the same bytes as on one machine. Ray restarts a task if its process or machine dies. Inputs and
    the job's folder must have the same paths on all machines, for example on a shared filesystem.

    Args:
        address: address of the cluster; None connects to a running cluster, else starts a cluster on this machine.
        num_workers: threads per task.
        max_retries: maximum number of restarts of a task.
        init_options: additional arguments for `ray.init`.

    Raises:
        ConfigError: a number is out of range.
    """

    address: str | None = None
    num_workers: int = 1
    max_retries: int = 3
    init_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_integer("num_workers", self.num_workers, at_least=1)
        checked_integer("max_retries", self.max_retries, at_least=0)

    def __call__(self, job: ShardedJob, folder: JobFolder, book: Book) -> None:
        """Runs all shards of a job; if a task fails, raises its error. Finished shards stay usable."""
        if job.reads_streams:
            hint = "write the input to a file first, or run the job without Ray"
            raise ConfigError("other machines cannot read a pipe of this machine", hint=hint)
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            ray.init(address=self.address, **({"log_to_driver": False} | self.init_options))
        reports = [(shard, folder.report(shard)) for shard in job.shards]
        for shard, report in reports:
            if report is not None:
                book.update(shard.number, job.counts_of(report, shard), is_done=True)
        task = ray.remote(num_cpus=self.num_workers, max_retries=self.max_retries)(_do_shard)
        queries = known_queries()
        shared = [ray.put(job)]  # in a list, so that Ray passes the reference and each process loads the job once
        running = {
            task.remote(shared, job.fingerprint, folder.path, shard.number, self.num_workers, queries): shard
            for shard, report in reports
            if report is None
        }
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
                for each in done:
                    shard = running.pop(each)
                    try:
                        result = ray.get(each)
                    except ray.exceptions.RayError as error:
                        message = f"the task of shard {shard.number} failed ({job.location(shard)}): {error}"
                        hint = "run the same command again; finished shards are kept"
                        raise WorkerError(message, hint=hint) from error
                    if isinstance(result, (TokenloomError, FolderGoneError)):
                        raise result
                    book.update(shard.number, job.counts_of(result, shard), is_done=True)
        finally:
            for each in running:
                ray.cancel(each, force=True)


_WORKERS: dict[str, tuple[ShardedJob, RunShard, ExitStack]] = {}
"""{fingerprint: (job, function that runs a shard, resources to close)} of the last job in this process."""


def _do_shard(
    shared: list[Any], fingerprint: str, path: str, number: int, num_workers: int, queries: dict[str, str]
) -> Any:
    """Runs a shard in a Ray task; returns its report. Tokenloom errors are returned: Ray would wrap a raised error."""
    try:
        remember(queries)
        if fingerprint not in _WORKERS:
            for _, _, stack in _WORKERS.values():
                stack.close()
            _WORKERS.clear()
            job, stack = require("ray", extra="ray").get(shared[0]), ExitStack()
            _WORKERS[fingerprint] = job, stack.enter_context(job.worker(num_workers)), stack
        job, run, _ = _WORKERS[fingerprint]
        folder, shard = JobFolder(path, job), job.shards[number]
        with folder.joined(makes=False), folder.claimed(shard, wait=True) as is_ours:
            return run(shard, folder.part_prefix(shard)) if is_ours else folder.report(shard)
    except (TokenloomError, FolderGoneError) as error:
        return error
