"""Runs a job in several processes of this machine.

Each child is a fresh interpreter, since forking a process with threads is unsafe and the caller's script may not be
importable. A child ends with its parent, even if the parent is killed.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from tokenloom.errors import ConfigError, StuckRecordError, TokenloomError, WorkerError
from tokenloom.machine import descriptor_path, usable_processors
from tokenloom.numbers import checked_integer
from tokenloom.preprocess.folder import FolderGoneError, JobFolder, Silence
from tokenloom.preprocess.sharded import Book, Counts, Runner, ShardedJob, work_on_shards
from tokenloom.storage.secrets import known_queries, remember

_LOGGER = logging.getLogger(__name__)
_SECONDS_BETWEEN_MESSAGES = 0.1
_SECONDS_BETWEEN_BEATS = 5.0
_MOST_POLL_SECONDS = 1.0
_SECONDS_TO_START = 60.0  # time limit for the first heartbeat on a busy machine
# Signals that a process causes itself; others may come from outside, for example when memory runs out.
_OWN_SIGNALS = {getattr(signal, f"SIG{name}") for name in ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS")}
_IMPORTABLE = "move your own functions and classes to an importable module, or use `num_processes=1`"
_MOST_DEATHS = 3  # at one shard, or before the first shard
_STUCK = "stuck"


def work_in_processes(job: ShardedJob, folder: JobFolder, *, num_processes: int, num_workers: int, book: Book) -> None:
    """Runs all shards of a job in child processes; raises the error of the first child that fails.

    Replaces a child that dies; raises `WorkerError` after `_MOST_DEATHS` deaths at one shard. Raises `ConfigError` if
    the job cannot be pickled, for example because of a lambda.
    """
    num_deaths: Counter[int | None] = Counter()
    try:
        order = pickle.dumps((job, folder.path, num_workers, known_queries()))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot pickle the job for another process: {error}", hint=_IMPORTABLE) from error
    with _Children(order, timeout_seconds=job.worker_timeout_seconds) as children:
        for _ in range(num_processes):
            children.start()
        for child, message in children.messages():
            if isinstance(message, Exception):
                raise message
            if isinstance(message, tuple):
                number, counts, is_done = message
                child.shard = None if is_done else number
                book.update(number, counts, is_done=is_done)
            elif message:
                where, end = "a shard", f"died ({f'signal {-message}' if message < 0 else f'exit status {message}'})"
                if child.is_stuck:
                    end = "stopped responding"
                if child.shard is not None:
                    where = f"shard {child.shard} ({job.location(job.shards[child.shard])})"
                problem = f"a process that worked on {where} {end}"
                num_deaths[child.shard] += 1
                if child.shard is not None and (child.is_stuck or -message in _OWN_SIGNALS):
                    reason = f"a process that tokenized only this record {end}"
                    if (found := job.blame(folder.part_prefix(job.shards[child.shard]), reason)) is not None:
                        num_deaths[child.shard] = 0  # the next attempt skips that record
                        problem += f" at {found}"
                if num_deaths[child.shard] >= _MOST_DEATHS:
                    problem += f", as did {_MOST_DEATHS - 1} processes before it"
                    hint = "if memory ran out, lower `num_processes` or `num_workers`; finished shards are kept"
                    raise WorkerError(problem, hint=hint)
                _LOGGER.warning("%s; starting another process", problem)
                children.start()


class _Child:
    """A child process, the index of the shard it is running, and its heartbeat state."""

    def __init__(self, order: int, silence: Silence) -> None:
        self.connection, child_connection = Pipe(duplex=False)
        call = "from tokenloom.preprocess.processes import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, str(order), str(child_connection.fileno())],
            stdin=subprocess.PIPE,  # is closed when the parent ends
            stdout=2,
            pass_fds=[order, child_connection.fileno()],
        )
        child_connection.close()
        self.shard: int | None = None
        self.is_stuck, self.num_beats = False, 0
        self.silence = silence

    def close(self) -> int:
        self.connection.close()
        with self.process as process:
            return process.wait()


class _Children:
    """The child processes of a job; they read the pickled job from a shared `memfd`."""

    def __init__(self, order: bytes, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._poll_seconds = min(_MOST_POLL_SECONDS, timeout_seconds / 4)
        self._order = os.memfd_create("tokenloom-order")
        with open(self._order, "wb", closefd=False) as file:
            file.write(order)
        self._running: dict[Any, _Child] = {}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.process.kill()  # safe: its files appear atomically
        for child in self._running.values():
            child.close()
        os.close(self._order)

    def start(self) -> None:
        child = _Child(self._order, Silence(2 * self._poll_seconds))
        self._running[child.connection] = child

    def messages(self) -> Iterator[tuple[_Child, Any]]:
        """Yields the messages of all children (a progress tuple, an error or an exit status) until all have ended."""
        while self._running:
            ready = [self._running[each] for each in wait(list(self._running), self._poll_seconds)]
            self._kill_silent(ready)
            for child in ready:
                try:
                    message = child.connection.recv()
                except (EOFError, OSError):
                    del self._running[child.connection]
                    message = child.close()
                child.is_stuck |= message == _STUCK
                if message not in (_STUCK, None):
                    yield child, message

    def _kill_silent(self, ready: list[_Child]) -> None:
        for child in self._running.values():
            child.num_beats += child in ready
            timeout = self._timeout_seconds if child.num_beats else max(self._timeout_seconds, _SECONDS_TO_START)
            if child.silence.seconds(child.num_beats) > timeout and not child.is_stuck:
                child.is_stuck = True
                child.process.kill()


def main() -> None:
    """Runs as a child process: reads the job, runs shards, and reports to the parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal also signals the parent, which ends its children
    parent = _Parent(Connection(int(sys.argv[2]), readable=False))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _work(parent)
    except StuckRecordError:
        parent.send(_STUCK)
        os._exit(1)  # a thread hangs, so a normal exit would not finish
    except (FolderGoneError, TokenloomError) as error:  # other exceptions are bugs and print a traceback
        parent.send(error)


def _work(parent: _Parent) -> None:
    try:
        with open(descriptor_path(int(sys.argv[1])), "rb") as order:  # reopened, to read from the start
            job, path, num_workers, queries = pickle.load(order)
    except (AttributeError, ImportError) as error:
        raise ConfigError(f"cannot load the job in another process: {error}", hint=_IMPORTABLE) from error
    remember(queries)
    threading.Thread(target=parent.beat, args=(job.worker_timeout_seconds / 8,), daemon=True).start()
    folder: JobFolder = JobFolder(path, job)
    with folder.joined(makes=False):
        work_on_shards(job, folder, num_workers=num_workers, book=parent, waits_aloud=False)


class _Parent:
    """A `Book` that sends progress to the parent process, with a limited message rate."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._sent = 0.0
        self._sent_shard: int | None = None

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send(message)

    def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        if is_done or number != self._sent_shard or time.monotonic() - self._sent > _SECONDS_BETWEEN_MESSAGES:
            self._sent, self._sent_shard = time.monotonic(), number
            self.send((number, dict(counts), is_done))

    def beat(self, seconds: float) -> None:
        while True:
            with suppress(OSError):
                self.send(None)
            time.sleep(min(_SECONDS_BETWEEN_BEATS, seconds))


def _end_with_parent() -> None:
    """Exits this process when standard input is closed, which happens when the parent ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


def local_runner(
    *, most_processes: int, num_processes: int | None, num_workers: int | None, threads_per_process: int = 1
) -> Runner:
    """Returns a runner that runs shards in this process, or in several processes of this machine.

    Default of `num_processes`: processors / `num_workers`; without `num_workers`, processors / `threads_per_process`;
    at most `most_processes`. Default of `num_workers`, the number of threads per process: processors / processes.
    """
    for name, number in (("num_processes", num_processes), ("num_workers", num_workers)):
        if number is not None:
            checked_integer(name, number, at_least=1)
    num_processors = usable_processors()
    processes = min(num_processes or max(1, num_processors // (num_workers or threads_per_process)), most_processes)
    workers = num_workers or max(1, num_processors // processes)

    def run(job: ShardedJob, folder: JobFolder, book: Book) -> None:
        # After a crash, a child tokenizes the suspect records, so that this process survives.
        if processes == 1 and (job.reads_streams or not folder.has_journals()):
            work_on_shards(job, folder, num_workers=workers, book=book)
        else:
            work_in_processes(job, folder, num_processes=processes, num_workers=workers, book=book)

    return run
