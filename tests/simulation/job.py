"""Processes that share the folder, shards and assembly of a job, among files of other users.

Guarantee: a process that succeeds finds the output of all shards, in order; one process assembles at a time; files of
other users are never removed; no process writes into an abandoned folder; all processes end, whichever die or freeze.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from tests.simulation.disk import Inode
from tests.simulation.scheduler import Actor, FailedError, Faults, World
from tests.simulation.system import simulated
from tokenloom.errors import ConfigError, StorageError
from tokenloom.preprocess import folder as folder_module
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.sharded import Book, Counts, RunShard, ShardedJob, do_and_assemble, work_on_shards
from tokenloom.storage.atomic import PendingFile, publish_bytes
from tokenloom.storage.publishing import FileGroup, OutputLock, publish_together, recover

_JOB = "/out/set.job"
_OUTPUT = "/out/set.bin"
_KEY = "/out/set.idx"


class _Plan(ShardedJob):
    def __init__(self, number: int, num_shards: int, worker_timeout_seconds: float) -> None:
        self.fingerprint = f"inputs {number}"
        self._timeout = worker_timeout_seconds
        self._shards = [SimpleNamespace(key=f"{number:012x}{shard:012x}", number=shard) for shard in range(num_shards)]

    @property
    def shards(self) -> list[SimpleNamespace]:
        return self._shards

    @property
    def worker_timeout_seconds(self) -> float:
        return self._timeout

    def description(self) -> dict[str, Any]:
        return {"format": 1}

    def input_keys(self) -> list[str]:
        return [self.fingerprint]

    def read_report(self, data: bytes, *, path: str) -> str:
        with suppress(ValueError):
            if type(told := json.loads(data)) is str:
                return told
        raise StorageError(f"`{path}` is no report")

    @contextmanager
    def worker(self, num_workers: int) -> Iterator[RunShard]:
        yield self.write_part

    def write_part(self, shard: SimpleNamespace, part_prefix: str, *, progress: Callable[..., None]) -> str:
        with PendingFile(f"{part_prefix}_0.bin", durable=False) as file:
            file.write(self.part(shard))
        publish_bytes(f"{part_prefix}.json", json.dumps(shard.key).encode())
        return str(shard.key)

    def counts_of(self, report: str, shard: SimpleNamespace) -> Counts:
        assert report == shard.key
        return {}

    def location(self, shard: SimpleNamespace) -> str:
        return shard.key

    def content(self) -> bytes:
        return b"".join(self.part(shard) for shard in self.shards)

    def part(self, shard: SimpleNamespace) -> bytes:
        return f"{self.fingerprint} part {shard.number};".encode()


class _Jobs:
    def __init__(self, world: World) -> None:
        self.world = world
        self.assembling: str | None = None
        self.strange: dict[str, bytes] = {}
        self.late: Inode | None = None  # a file that another process puts into the folder of the job

    def damaged_parts(self, plan: _Plan, folder: JobFolder) -> list[tuple[SimpleNamespace, str]]:
        found = []
        for shard in plan.shards:
            report = folder.report(shard)
            if report is None:
                found.append((shard, "no report"))
            elif self._read(f"{folder.part_prefix(shard)}_0.bin") != plan.part(shard):
                found.append((shard, "damaged"))
        return found

    def assemble(self, plan: _Plan, folder: JobFolder) -> None:
        world, name = self.world, self.world.current.name
        running = [actor for actor in world.actors if actor.name == self.assembling]
        if running and not (running[0].is_dead or running[0].is_done):
            raise FailedError(f"{name} assembles while {self.assembling} does")
        self.assembling = name
        parts = [self._read(f"{folder.part_prefix(shard)}_0.bin") for shard in plan.shards]
        files: list[PendingFile] = []
        try:
            for path in (_OUTPUT, _KEY):
                files.append(PendingFile(path))
                files[-1].write(b"".join(part or b"" for part in parts))
            with OutputLock(_KEY):
                publish_together([FileGroup(key=_KEY, files=files, names=[_KEY, _OUTPUT])], replace=True, locked=[_KEY])
        finally:
            for file in files:
                file.discard()
            if self.assembling == name:
                self.assembling = None

    def _read(self, path: str) -> bytes | None:
        self.world.call(f"read {path}")
        return self.world.disk.bytes_at(path)

    def is_finished(self, plan: _Plan) -> bool:
        recover(_KEY)
        return self._read(_KEY) == plan.content() == self._read(_OUTPUT)

    def write(self, plan: _Plan, *, restart: bool) -> None:
        folder: JobFolder = JobFolder(_JOB, plan)
        if restart:
            folder.restart()
        elif self.is_finished(plan):
            folder.remove_remains()
            return
        try:
            with folder.joined():
                num_reused = sum(folder.report(shard) is not None for shard in plan.shards)
                if not (num_reused or restart) and self.is_finished(plan):
                    return
                options = {"run": _do_shards, "pending": [_OUTPUT.removesuffix(".bin")]}
                options["damaged"] = lambda: self.damaged_parts(plan, folder)
                options["assemble"] = lambda reports: self.assemble(plan, folder)
                do_and_assemble(plan, folder, _Book(), **options)
        except FolderGoneError as error:
            if not self.is_finished(plan):
                raise StorageError("the folder was removed while this job was working in it") from error

    def other_job_in_folder(self, plan: _Plan) -> bool:
        try:
            return json.loads(self.world.disk.bytes_at(f"{_JOB}/job.json") or b"{}")["inputs"] != plan.fingerprint
        except (ValueError, KeyError):
            return False

    def check_strange(self) -> None:
        if self.late is not None and not self.late.num_links:
            raise FailedError("a file that another process put into the folder of the job is gone")
        for path, data in self.strange.items():
            if self.world.disk.bytes_at(path) != data:
                places = [path for path in _all_files(self.world) if self.world.disk.bytes_at(path) == data]
                raise FailedError(f"{path}, which does not belong to a job, is gone; found at {places}")


class _Book:
    def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        pass


def _do_shards(job: ShardedJob, folder: JobFolder, book: Book) -> None:
    work_on_shards(job, folder, num_workers=1, book=book)


def _all_files(world: World, folder: str = "/out") -> list[str]:
    inode = world.disk.look(folder)
    found = []
    for name, entry in sorted(inode.entries.items() if inode else ()):
        path = f"{folder}/{name}"
        found += _all_files(world, path) if entry.is_folder else [path]
    return found


def _strangers(world: World, jobs: _Jobs) -> None:
    for path in ("/out/set.job.removed/notes", "/out/set.jsonl", "/out/set.job/notes"):
        if world.rng.random() < 0.15:
            jobs.strange[path] = f"a stranger's {path}".encode()
            world.disk.put(path, jobs.strange[path])


def _comes_late(world: World, jobs: _Jobs) -> None:
    for _ in range(world.rng.randrange(60)):
        world.call("waits for a moment")
        world.wait(None, seconds=0.002)
    folder = world.disk.look(_JOB)
    if folder is not None and "late" not in folder.entries:
        world.disk.put(f"{_JOB}/late", b"late")
        world.tell("puts a file into the folder of the job")
        jobs.late = folder.entries["late"]


def run(world: World) -> None:
    world.disk.put_folder("/out")
    jobs = _Jobs(world)
    _strangers(world, jobs)
    world.watch = jobs.check_strange
    is_blocked = "/out/set.job/notes" in jobs.strange
    timeout = world.rng.choice((0.5, 3.0))
    plans = [_Plan(number, world.rng.randrange(1, 4), timeout) for number in range(2)]
    with simulated(world, (folder_module,)), _boot_told(jobs):
        for boot in range(world.rng.randrange(1, 4)):
            works: dict[str, Callable[[], None]] = {}
            restarts = world.rng.choice((0.05, 0.3, 0.7))
            plan = world.rng.choice((plans[0], plans[0], plans[1]))
            for number in range(world.rng.randrange(1, 5)):
                restart = world.rng.random() < restarts
                works[f"p{boot}{number}"] = lambda plan=plan, restart=restart: jobs.write(plan, restart=restart)
            if world.rng.random() < 0.15:
                works["stranger"] = lambda: _comes_late(world, jobs)
                is_blocked = True
            for actor in world.run(works, Faults.drawn(world.rng)):
                if actor.error is not None and not issubclass(actor.error_kind or object, (StorageError, ConfigError)):
                    raise FailedError(f"{actor.name} ended with {actor.error}")
            if any(actor.succeeded for actor in world.actors if actor.name != "stranger"):
                _require_success(world.run({"reader": lambda: recover(_KEY)})[0])
                _check_output(world, plan)
        _check_last(world, jobs, plans[0], is_blocked=is_blocked)


def _require_success(actor: Actor) -> None:
    if actor.error is not None:
        raise FailedError(f"failed without faults: {actor.error}")


def _check_output(world: World, plan: _Plan) -> None:
    if world.disk.bytes_at(_KEY) != plan.content() or world.disk.bytes_at(_OUTPUT) != plan.content():
        found = {path: world.disk.bytes_at(path) for path in (_KEY, _OUTPUT)}
        raise FailedError(f"a process succeeded, but the output is {found}")


def _check_last(world: World, jobs: _Jobs, plan: _Plan, *, is_blocked: bool) -> None:
    last = world.run({"at last": lambda: jobs.write(plan, restart=False)})[0]
    if is_blocked or (last.error_kind is ConfigError and "unfinished job with other inputs" in (last.error or "")):
        return
    _require_success(last)
    _check_output(world, plan)
    left = [path for path in _all_files(world) if path not in {*jobs.strange, _KEY, _OUTPUT}]
    if jobs.other_job_in_folder(plan):
        left = [path for path in left if not path.startswith(f"{_JOB}/")]
    if left := [path for path in left if not path.endswith((".tmp", ".lock", "/late"))]:
        raise FailedError(f"left after the end: {left}")


@contextmanager
def _boot_told(jobs: _Jobs) -> Iterator[None]:
    before = folder_module.boot_id
    folder_module.boot_id = lambda: f"boot{0 if jobs.world.lost_power else 1}"
    try:
        yield
    finally:
        folder_module.boot_id = before
