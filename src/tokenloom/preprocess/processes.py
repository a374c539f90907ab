"""Several processes of this machine on one job.

Each is a fresh interpreter: threads make a fork unsafe, and a caller's own script need not be importable. It ends with
its parent, even if that is killed.
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
_SECONDS_BETWEEN_NEWS = 0.1
_SECONDS_BETWEEN_BEATS = 5.0
_MOST_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_START = 60.0  # a busy machine may need some for the first heartbeat
# Signals that a process causes itself; any other may come from outside, as where memory runs out.
_OWN_SIGNALS = {getattr(signal, f"SIG{name}") for name in ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS")}
_IMPORTABLE = "put functions and classes of your own into a module that can be imported, or use one process"
_MOST_DEATHS = 3  # at one shard, or before the first; most likely memory is short
_STUCK = "stuck"


def work_in_processes(job: ShardedJob, folder: JobFolder, *, num_processes: int, num_workers: int, book: Book) -> None:
    """Returns when all shards are done; a process that dies is replaced, a few times.

    Raises:
        ConfigError: the job cannot be pickled: it holds a function without a name, say.
        FolderGoneError: the job was finished meanwhile.
        WorkerError: processes keep dying.
        TokenloomError: error of the first process that failed; the others are ended, and the shards they did are kept.
    """
    num_deaths: Counter[int | None] = Counter()
    try:
        order = pickle.dumps((job, folder.path, num_workers, known_queries()))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot hand the job to another process: {error}", hint=_IMPORTABLE) from error
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
    """A process that was started, the number of its shard, and its heartbeats."""

    def __init__(self, order: int, silence: Silence) -> None:
        self.news, theirs = Pipe(duplex=False)
        call = "from tokenloom.preprocess.processes import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, str(order), str(theirs.fileno())],
            stdin=subprocess.PIPE,  # closes when the parent ends
            stdout=2,
            pass_fds=[order, theirs.fileno()],
        )
        theirs.close()
        self.shard: int | None = None
        self.is_stuck, self.num_beats = False, 0
        self.silence = silence

    def close(self) -> int:
        self.news.close()
        with self.process as process:
            return process.wait()


class _Children:
    """The processes of a job, and their messages. They read the order from memory that all share."""

    def __init__(self, order: bytes, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._look_seconds = min(_MOST_SECONDS_BETWEEN_LOOKS, timeout_seconds / 4)
        self._order = os.memfd_create("tokenloom-order")
        with open(self._order, "wb", closefd=False) as file:
            file.write(order)
        self._running: dict[Any, _Child] = {}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.process.kill()  # its files appear whole or not at all
        for child in self._running.values():
            child.close()
        os.close(self._order)

    def start(self) -> None:
        child = _Child(self._order, Silence(2 * self._look_seconds))
        self._running[child.news] = child

    def news(self) -> Iterator[tuple[_Child, Any]]:
        """Yields the messages of each (progress or an error), and its exit status, until all have ended."""
        while self._running:
            ready = [self._running[each] for each in wait(list(self._running), self._look_seconds)]
            self._kill_silent(ready)
            for child in ready:
                try:
                    told = child.news.recv()
                except (EOFError, OSError):
                    del self._running[child.news]
                    told = child.close()
                child.is_stuck |= told == _STUCK
                if told not in (_STUCK, None):
                    yield child, told

    def _kill_silent(self, heard: list[_Child]) -> None:
        for child in self._running.values():
            child.num_beats += child in heard
            timeout = self._timeout_seconds if child.num_beats else max(self._timeout_seconds, _SECONDS_TO_START)
            if child.silence.seconds(child.num_beats) > timeout and not child.is_stuck:
                child.is_stuck = True
                child.process.kill()


def main() -> None:
    """The program of a child: reads its order, works, and reports to its parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to the parent too, which ends its children
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
        with open(descriptor_path(int(sys.argv[1])), "rb") as order:  # opened anew, to read from its beginning
            job, path, num_workers, queries = pickle.load(order)
    except (AttributeError, ImportError) as error:
        raise ConfigError(f"a new process cannot find what the job is made of: {error}", hint=_IMPORTABLE) from error
    remember(queries)
    threading.Thread(target=parent.beat, args=(job.worker_timeout_seconds / 8,), daemon=True).start()
    folder: JobFolder = JobFolder(path, job)
    with folder.joined(makes=False):
        work_on_shards(job, folder, num_workers=num_workers, book=parent, waits_aloud=False)


class _Parent:
    """The process that started this one; a `Book` that limits the rate of messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._told = 0.0
        self._told_of: int | None = None

    def send(self, news: Any) -> None:
        with self._lock:
            self._connection.send(news)

    def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        if is_done or number != self._told_of or time.monotonic() - self._told > _SECONDS_BETWEEN_NEWS:
            self._told, self._told_of = time.monotonic(), number
            self.send((number, dict(counts), is_done))

    def beat(self, seconds: float) -> None:
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
    """Returns the runner of this machine: in this process, or in several.

    Args:
        most_processes: most processes of use: the number of shards, or 1 where only this process can read.
        num_processes: processes to start; None for one per `threads_per_process` processors.
        num_workers: threads of each; None to use all processors.
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
