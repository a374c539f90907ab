"""Several processes of this machine on one job.

Each is a fresh interpreter: threads make a fork unsafe, and a caller's own script need not be importable. It ends with
its parent, however that ends.
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
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.sharded import Book, Counts, Runner, ShardedJob, work_on_shards
from tokenloom.storage.secrets import known_queries, remember

_LOGGER = logging.getLogger(__name__)
_SECONDS_BETWEEN_NEWS = 0.1
_SECONDS_BETWEEN_BEATS = 5.0
_SECONDS_TO_START = 60.0  # a busy machine may take some for the first sign of life
_OWN_SIGNALS = {getattr(signal, f"SIG{name}") for name in ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS")}
"""Signals of which a process dies by its own doing; any other may come from outside, as where memory runs out."""
_IMPORTABLE = "put functions and classes of your own into a module that can be imported, or use one process"
_MOST_DEATHS = 3
"""Deaths at one shard, or before the first: what kills whoever works on it (most likely for want of memory) must not
do so for ever."""
_STUCK = "stuck"


def work_in_processes(job: ShardedJob, folder: JobFolder, *, num_processes: int, num_workers: int, book: Book) -> None:
    """Returns when all shards are done; a process that dies is replaced, a few times.

    Raises:
        ConfigError: the job holds what another process cannot be given, such as a function without a name.
        FolderGoneError: the job was finished meanwhile.
        WorkerError: processes keep dying.
        TokenloomError: what the first of them raised; the others are ended, and what they finished is kept.
    """
    num_deaths: Counter[int | None] = Counter()
    try:
        order = pickle.dumps((job, folder.path, num_workers, known_queries()))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        message = f"cannot hand the job to another process: {error}"
        raise ConfigError(message, hint=_IMPORTABLE) from error
    with _Children(order, timeout_seconds=job.worker_timeout_seconds) as children:
        for _ in range(num_processes):
            children.start()
        for child, news in children.news():
            if isinstance(news, Exception):
                raise news
            if isinstance(news, tuple):
                number, counts, is_done = news
                child.shard = None if is_done else number
                book.tell(number, counts, is_done=is_done)
            elif news:
                where, end = "a shard", f"died ({f'signal {-news}' if news < 0 else f'exit status {news}'})"
                if child.is_stuck:
                    end = "showed no sign of life, or of an end"
                if child.shard is not None:
                    where = f"shard {child.shard} ({job.whereabouts(job.shards[child.shard])})"
                message = f"a process that worked on {where} {end}"
                num_deaths[child.shard] += 1
                if child.shard is not None and (child.is_stuck or -news in _OWN_SIGNALS):
                    reason = f"a process that tokenised it and nothing else {end}"
                    if (found := job.blame(folder.journal_path(job.shards[child.shard]), reason)) is not None:
                        num_deaths[child.shard] = 0  # the next attempt is without that record
                        message += f" of {found}"
                if num_deaths[child.shard] >= _MOST_DEATHS:
                    message += f", as did {_MOST_DEATHS - 1} before it"
                    hint = "was it for want of memory? use fewer workers, or smaller shards; what is done is kept"
                    raise WorkerError(message, hint=hint)
                _LOGGER.warning("%s; another takes its place", message)
                children.start()


class _Child:
    """A process that was started, and the number of the shard it is at.

    Args:
        order: descriptor of what it is to do, in memory that all can read: through its pipe, each would have to be
            fed by itself, and would start only when the one before it has.
    """

    def __init__(self, order: int) -> None:
        self.news, theirs = Pipe(duplex=False)
        call = "from tokenloom.preprocess.processes import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, str(order), str(theirs.fileno())],
            stdin=subprocess.PIPE,  # by whose end it notices that of its parent
            stdout=2,
            pass_fds=[order, theirs.fileno()],
        )
        theirs.close()
        self.shard: int | None = None
        self.is_stuck = self.has_told = False
        self.silent_seconds = 0.0

    def close(self) -> int:
        """Waits for its end, closes its pipes and returns its exit status."""
        self.news.close()
        with self.process as process:
            return process.wait()


class _Children:
    """The processes of a job, and what they tell."""

    def __init__(self, order: bytes, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._order = os.memfd_create("tokenloom-order")
        with open(self._order, "wb", closefd=False) as file:
            file.write(order)
        self._running: dict[Any, _Child] = {}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.process.kill()  # what it writes appears whole or not at all
        for child in self._running.values():
            child.close()
        os.close(self._order)

    def start(self) -> None:
        """Starts one more."""
        child = _Child(self._order)
        self._running[child.news] = child

    def news(self) -> Iterator[tuple[_Child, Any]]:
        """Yields what each tells, how far a shard is or an error, and its exit status when it ends, until all have."""
        look = min(1.0, self._timeout_seconds / 4)
        while self._running:
            began = time.monotonic()
            ready = [self._running[each] for each in wait(list(self._running), look)]
            passed = min(time.monotonic() - began, 2 * look)  # time in which we were stopped ourselves does not count
            self._kill_silent(ready, passed)
            for child in ready:
                try:
                    told = child.news.recv()
                except (EOFError, OSError):
                    del self._running[child.news]
                    told = child.close()
                child.is_stuck |= told == _STUCK
                if told not in (_STUCK, None):
                    yield child, told

    def _kill_silent(self, heard: list[_Child], passed: float) -> None:
        """Kills the processes that have told nothing for too long."""
        for child in self._running.values():
            child.has_told |= child in heard
            child.silent_seconds = 0.0 if child in heard else child.silent_seconds + passed
            patience = self._timeout_seconds if child.has_told else max(self._timeout_seconds, _SECONDS_TO_START)
            if child.silent_seconds > patience and not child.is_stuck:
                child.is_stuck = True
                child.process.kill()


def main() -> None:
    """What a child does: reads its order, works, and tells its parent of it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to the parent too, which ends us
    parent = _Parent(Connection(int(sys.argv[2]), readable=False))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _work(parent)
    except StuckRecordError:
        parent.send(_STUCK)
        os._exit(1)  # a thread will never end
    except (FolderGoneError, TokenloomError) as error:  # others are bugs, and printed as such
        parent.send(error)


def _work(parent: _Parent) -> None:
    try:
        with open(descriptor_path(int(sys.argv[1])), "rb") as order:  # opened anew, to stand at its beginning
            job, path, num_workers, queries = pickle.load(order)
    except (AttributeError, ImportError) as error:
        message = f"a new process cannot find what the job is made of: {error}"
        raise ConfigError(message, hint=_IMPORTABLE) from error
    remember(queries)
    threading.Thread(target=parent.beat, args=(job.worker_timeout_seconds / 8,), daemon=True).start()
    folder: JobFolder = JobFolder(path, job)
    with folder.joined(makes=False):
        work_on_shards(job, folder, num_workers=num_workers, book=parent, waits_aloud=False)


class _Parent:
    """The process that started this one; a `Book`, which is told not too often."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._told = 0.0
        self._told_of: int | None = None

    def send(self, news: Any) -> None:
        """Tells it something."""
        with self._lock:
            self._connection.send(news)

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        """Tells it how far the shard of a number is."""
        if is_done or number != self._told_of or time.monotonic() - self._told > _SECONDS_BETWEEN_NEWS:
            self._told, self._told_of = time.monotonic(), number
            self.send((number, dict(counts), is_done))

    def beat(self, seconds: float) -> None:
        """Tells it again and again that this process runs."""
        while True:
            with suppress(OSError):
                self.send(None)
            time.sleep(min(_SECONDS_BETWEEN_BEATS, seconds))


def _end_with_parent() -> None:
    """Waits for the end of standard input, which comes when the parent ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


def local_runner(
    *, most_processes: int, num_processes: int | None, num_workers: int | None, threads_per_process: int = 1
) -> Runner:
    """Returns what works on this machine: in this process, or in several.

    Args:
        most_processes: number of processes that have something to do: the shards, or 1 where only this one can read.
        num_processes: processes to start; None for as many as the processors feed.
        num_workers: threads of each; None for as many as there are processors left for it.
        threads_per_process: most threads that one process feeds.
    """
    for name, number in (("num_processes", num_processes), ("num_workers", num_workers)):
        if number is not None:
            checked_integer(name, number, at_least=1)
    num_processors = usable_processors()
    processes = min(num_processes or max(1, num_processors // (num_workers or threads_per_process)), most_processes)
    workers = num_workers or max(1, num_processors // processes)

    def run(job: ShardedJob, folder: JobFolder, book: Book) -> None:
        suspects = any(os.path.exists(folder.journal_path(shard)) for shard in job.shards)
        is_alone = job.reads_streams or not suspects  # this process must not die of a record
        if processes == 1 and is_alone:
            work_on_shards(job, folder, num_workers=workers, book=book)
        else:
            work_in_processes(job, folder, num_processes=processes, num_workers=workers, book=book)

    return run
