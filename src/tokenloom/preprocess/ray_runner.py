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
    """Does the shards of a job as tasks of Ray, on as many processors as the cluster has.

    The job is the same as on one machine: shards, parts and datasets, byte for byte. A task whose process dies is
    started again elsewhere, as are those of a machine that is lost. Inputs and the job's folder must be at the same
    path on all machines, such as on a shared filesystem.

    Args:
        address: address of the cluster; None for one that is running already, or else one on this machine.
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
        """Checks the numbers."""
        checked_integer("num_workers", self.num_workers, at_least=1)
        checked_integer("max_retries", self.max_retries, at_least=0)

    def __call__(self, job: ShardedJob, folder: JobFolder, book: Book) -> None:
        """Returns when all shards are done.

        Raises:
            ConfigError: the input is standard input, which only this process can read.
            MissingExtraError: `ray` is not installed.
            WorkerError: the process of a task died too often.
            TokenloomError: what the first task raised; what the others finished is kept.
        """
        if job.reads_streams:
            message = "expected inputs that all machines can read, got a stream"
            raise ConfigError(message, hint="write it to a file first, or do without Ray")
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            ray.init(address=self.address, **({"log_to_driver": False} | self.init_options))
        todo = []
        for shard in job.shards:
            report = folder.report(shard)
            if report is None:
                todo.append(shard)
            else:
                book.tell(shard.number, job.counts_of(report, shard), is_done=True)
        task = ray.remote(num_cpus=self.num_workers, max_retries=self.max_retries)(_do_shard)
        queries = known_queries()
        shared = [ray.put(job)]  # in a list, Ray hands over the reference, and a process reads the plan once
        running = {
            task.remote(shared, job.fingerprint, folder.path, shard.number, self.num_workers, queries): shard
            for shard in todo
        }
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_NEWS)
                for each in done:
                    shard = running.pop(each)
                    made = _result(ray, each, f"shard {shard.number} failed ({job.whereabouts(shard)})")
                    book.tell(shard.number, job.counts_of(made, shard), is_done=True)
        finally:
            for each in running:
                ray.cancel(each, force=True)


def _result(ray: Any, task: Any, failure: str) -> Any:
    try:
        told = ray.get(task)
    except ray.exceptions.RayError as error:
        message = f"the task of {failure}: {error}"
        raise WorkerError(message, hint="what was finished is kept; run the same command again") from error
    if isinstance(told, (TokenloomError, FolderGoneError)):
        raise told
    return told


_WORKERS: dict[str, tuple[ShardedJob, ExitStack, RunShard]] = {}
"""A job, by its fingerprint, and what does its shards in this process: both live from task to task."""


def _do_shard(
    shared: list[Any], fingerprint: str, path: str, number: int, num_workers: int, queries: dict[str, str]
) -> Any:
    """What a task does: returns the report of a shard; errors of ours are returned, since Ray would wrap them."""
    try:
        remember(queries)
        job, run = _worker(shared, fingerprint, num_workers)
        folder, shard = JobFolder(path, job), job.shards[number]
        with folder.joined(makes=False), folder.claimed(shard, wait=True) as is_ours:
            return run(shard, folder.part_prefix(shard)) if is_ours else folder.report(shard)
    except (TokenloomError, FolderGoneError) as error:
        return error


def _worker(shared: list[Any], fingerprint: str, num_workers: int) -> tuple[ShardedJob, RunShard]:
    if fingerprint not in _WORKERS:
        for _, stack, _ in _WORKERS.values():
            stack.close()
        _WORKERS.clear()
        job: ShardedJob = require("ray", extra="ray").get(shared[0])
        stack = ExitStack()
        _WORKERS[fingerprint] = job, stack, stack.enter_context(job.worker(num_workers))
    job, _, run = _WORKERS[fingerprint]
    return job, run
