"""The shards of a job on a Ray cluster whose machines share the job's folder and the inputs."""

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

_SECONDS_BETWEEN_NEWS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRunner:
    """Runs the shards of a job as tasks of Ray, on all processors of the cluster.

    Shards, parts and datasets are the same as on one machine, byte for byte. A task whose process dies is started
    again, as are those of a machine that is lost. Inputs and the job's folder must be at the same path on all machines,
    such as on a shared filesystem.

    Args:
        address: address of the cluster; None for a running one, or else one on this machine.
        num_workers: threads of each task.
        max_retries: most retries of a task whose process died.
        init_options: options for `ray.init`.

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
        """Returns when all shards are done; raises the error of the first task that fails, and keeps the other shards.

        Raises:
            ConfigError: the input is standard input.
            MissingExtraError: `ray` is not installed.
            WorkerError: the process of a task died too often.
        """
        if job.reads_streams:
            hint = "write it to a file first, or do without Ray"
            raise ConfigError("a stream cannot be read on other machines", hint=hint)
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            ray.init(address=self.address, **({"log_to_driver": False} | self.init_options))
        reports = [(shard, folder.report(shard)) for shard in job.shards]
        for shard, report in reports:
            if report is not None:
                book.tell(shard.number, job.counts_of(report, shard), is_done=True)
        task = ray.remote(num_cpus=self.num_workers, max_retries=self.max_retries)(_do_shard)
        queries = known_queries()
        shared = [ray.put(job)]  # in a list, Ray passes the reference, and a process reads the plan once
        running = {
            task.remote(shared, job.fingerprint, folder.path, shard.number, self.num_workers, queries): shard
            for shard, report in reports
            if report is None
        }
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_NEWS)
                for each in done:
                    shard = running.pop(each)
                    try:
                        made = ray.get(each)
                    except ray.exceptions.RayError as error:
                        message = f"the task of shard {shard.number} failed ({job.whereabouts(shard)}): {error}"
                        raise WorkerError(message, hint="run the same command again; what is done is kept") from error
                    if isinstance(made, (TokenloomError, FolderGoneError)):
                        raise made
                    book.tell(shard.number, job.counts_of(made, shard), is_done=True)
        finally:
            for each in running:
                ray.cancel(each, force=True)


_WORKERS: dict[str, tuple[ShardedJob, RunShard, ExitStack]] = {}
"""A job by its fingerprint, and its function for shards, which live from task to task."""


def _do_shard(
    shared: list[Any], fingerprint: str, path: str, number: int, num_workers: int, queries: dict[str, str]
) -> Any:
    """The function of a task: returns the report of a shard, or our errors, since Ray would wrap what is raised."""
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
