"""One shard into its part: blocks of text tokenized by threads, and written in order.

Threads suffice up to some eight: nearly all the time is spent in native code that lets others run, and they share
memory, so that blocks are never copied between processes. More come from more processes, each with shards of its own.

A process can die of a text: native code may overflow its stack, or abort. So `KEY.journal` is there while a process
works on a shard, and one that was left behind tells of a death. Records are then tokenized one at a time, with nothing
beside them, and the journal names each. Dying there too, or taking for ever, condemns it: it is a bad record from then
on. Only a process of ours that saw the death can do so, and only if the cause lies in the process itself: one that was
killed from outside says nothing about its records.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tokenloom.errors import StuckRecordError
from tokenloom.inputs.record_format import SliceReader
from tokenloom.inputs.records import Block
from tokenloom.preprocess.blocks import Isolating, TokenizedBlock, singles, sole_record
from tokenloom.preprocess.folder import journal_path
from tokenloom.preprocess.part import PartWriter, ShardReport
from tokenloom.preprocess.recipe import Making
from tokenloom.preprocess.sharded import Counts, RunShard
from tokenloom.storage.atomic import storage_errors
from tokenloom.tokenizers.engines import one_thread_per_call

if TYPE_CHECKING:
    from tokenloom.preprocess.plan import JobPlan, PlannedShard

Given = TypeVar("Given")
Made = TypeVar("Made")

_SECONDS_OF_A_LOOK = 1.0
_Task = tuple[Future[Any], Callable[[], Any]]

Place = tuple[str, int]
"""The path of a file, and the number of a record as its block counts."""


class StuckError(Exception):
    """A thread has not come to an end with what it was given."""

    def __init__(self, given: Any) -> None:
        super().__init__("a thread is stuck")
        self.given = given


class WorkerThreads:
    """Threads that can be left behind: native code cannot be interrupted, and the end of Python must not wait for it.

    Attributes:
        count: likewise.
        is_left: whether one of them will not end.
    """

    def __init__(self, count: int) -> None:
        self.count: int = count
        self.is_left: bool = False
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"tokenloom_{k}", daemon=True) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], Made]) -> Future[Made]:
        """Has a thread call something."""
        future: Future[Made] = Future()
        self._tasks.put((future, call))
        return future

    def __enter__(self) -> WorkerThreads:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves without starting what waits; what is worked on is finished, and its result dropped."""
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _thread in self._threads:
            self._tasks.put(None)
        for thread in () if self.is_left else self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - told where the result is asked for, an interruption too
                future.set_exception(error)
            del task, future, call  # not held while waiting


def in_order(
    threads: WorkerThreads,
    work: Callable[[Given], Made],
    blocks: Iterable[Given],
    *,
    num_ahead: int,
    timeout_seconds: float,
    pulse: Callable[[], object],
) -> Iterator[Made]:
    """Yields what is made of the blocks, in order; at most `num_ahead` are read and not yielded.

    Args:
        threads: threads that work.
        work: safe from several threads.
        blocks: what it is given.
        num_ahead: bounds the memory.
        timeout_seconds: time to wait for one block.
        pulse: returns something else whenever a block makes progress, and the time begins anew.

    Raises:
        StuckError: the time has passed; the thread is left behind.
    """
    running: deque[tuple[Future[Made], Given]] = deque()

    def next_result() -> Made:
        future, block = running.popleft()
        if not _is_done(future, timeout_seconds, pulse):
            threads.is_left = True
            raise StuckError(block)
        return future.result()

    for block in blocks:
        running.append((threads.submit(partial(work, block)), block))
        del block  # the thread's to drop
        if len(running) > num_ahead:
            yield next_result()
    while running:
        yield next_result()


def _is_done(future: Future[Any], timeout_seconds: float, pulse: Callable[[], object]) -> bool:
    """Waits until something is done; whether that is so. Time in which this process was stopped does not count."""
    look = min(_SECONDS_OF_A_LOOK, timeout_seconds / 4)
    waited, seen = 0.0, None
    while not future.done():
        began = time.monotonic()
        try:
            future.exception(timeout=look)
        except TimeoutError:
            waited += min(time.monotonic() - began, 2 * look)
        if (now := pulse()) != seen:
            waited, seen = 0.0, now
        if waited > timeout_seconds:
            return future.done()
    return True


class ShardJournal:
    """The journal of a shard, while a process works on it.

    Args:
        path: path of the file.

    Attributes:
        is_careful: whether an earlier attempt has left one, so that records are to be tokenized one by one.
        num_noted: how many records were begun so.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_careful: bool = os.path.exists(path)
        self.num_noted: int = 0
        self._condemned: list[list[Any]] = _read(path).get("condemned", [])
        self.note(None)

    def note(self, place: Place | None) -> None:
        """Notes the record that is tokenized; None for none."""
        self.num_noted += 1
        _write(self._path, {"at": place, "condemned": self._condemned})

    def remove(self) -> None:
        """Ends the work."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def work(self, work: Isolating, bundle: Sequence[Block]) -> list[TokenizedBlock]:
        """Returns what is made of some blocks; of the records one by one, if that is to be."""
        if not self.is_careful:
            return work(bundle)
        condemned = {(path, number): reason for path, number, reason in self._condemned}
        made: list[TokenizedBlock] = []
        for single in singles(bundle):
            place = single[0].path, single[0].first_record
            if place in condemned:
                made.append(work.rejected(sole_record(single, condemned[place])))
            else:
                self.note(place)
                made += work(single)
        self.note(None)
        return made


def condemn(path: str, reason: str) -> Place | None:
    """Makes the record a bad one that the process at a shard, which has ended of itself, was at alone.

    Returns:
        its place; None if that is not known.
    """
    found = _read(path)
    if (place := found.get("at")) is None:
        return None
    _write(path, {"at": None, "condemned": [*found["condemned"], [*place, reason]]})
    return place[0], place[1]


def _read(path: str) -> dict[str, Any]:
    """Returns what a journal says; nothing if there is none, or it was cut off."""
    try:
        with open(path, "rb") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: str, state: dict[str, Any]) -> None:
    with storage_errors("write", path), open(path, "w", encoding="utf-8") as stream:
        json.dump(state, stream)


@contextmanager
def shard_worker(plan: JobPlan, *, num_workers: int) -> Iterator[RunShard]:
    """Yields what tokenizes shards, one after the other; its threads and engines live as long as the `with` block."""
    with one_thread_per_call(), WorkerThreads(num_workers) as threads:
        # Not in this thread, where an interruption is raised: `orjson` and `gigatoken` crash on one as they start.
        making = threads.submit(partial(plan.recipe.making, plan.shards[0].slices[0], num_workers=num_workers)).result()
        yield partial(_run, plan, making, threads)


def _run(
    plan: JobPlan,
    making: Making,
    threads: WorkerThreads,
    shard: PlannedShard,
    part_prefix: str,
    *,
    progress: Callable[[Counts], None] | None = None,
) -> ShardReport:
    """Writes the part of a shard, and returns its report once that is written too."""
    started = time.monotonic()
    reading = _Reading(shard, making)
    with (
        _journal(part_prefix) as journal,
        closing(reading.blocks()) as blocks,
        PartWriter(plan, shard, part_prefix) as part,
    ):
        for made in _tokenized(plan, making, threads, making.bundles(blocks), journal):
            for block in made:
                part.write(block)
            part.counts["num_text_bytes"] = reading.num_text_bytes
            if progress is not None:
                progress({"num_file_bytes": reading.position, **part.counts})
        part.counts["num_text_bytes"] = reading.num_text_bytes
        engine, reason = making.engine, making.engine_reason
        return part.publish(slice_rows=tuple(reading.num_rows), engine=engine, engine_reason=reason, started=started)


def _tokenized(
    plan: JobPlan, making: Making, threads: WorkerThreads, bundles: Iterator[list[Block]], journal: ShardJournal
) -> Iterator[list[TokenizedBlock]]:
    """Yields what becomes of bundles, in order."""
    seconds = plan.settings.record_timeout_seconds
    try:
        yield from in_order(
            threads,
            partial(journal.work, Isolating(making.work)),
            bundles,
            num_ahead=0 if journal.is_careful else threads.count + 1,
            timeout_seconds=seconds,
            pulse=lambda: journal.num_noted,
        )
    except StuckError as error:
        first: Block = error.given[0]
        place = "" if first.unit == "file" else f" from {first.unit} {first.first_record} on"
        message = f"tokenising `{first.path}`{place} takes longer than {seconds:g} seconds"
        hint = "the same command again finds the record, and treats it as a bad one"
        raise StuckRecordError(message, hint=hint) from error


@contextmanager
def _journal(part_prefix: str) -> Iterator[ShardJournal]:
    """Yields the journal of a shard; it stays for the next attempt where records were found that never end."""
    journal = ShardJournal(journal_path(part_prefix))
    try:
        yield journal
    except StuckRecordError:
        raise
    except BaseException:
        journal.remove()
        raise
    journal.remove()


class _Reading:
    """The blocks of a shard's slices, one slice after the other."""

    def __init__(self, shard: PlannedShard, making: Making) -> None:
        self._shard = shard
        self._making = making
        self._reader: SliceReader | None = None
        self._position = 0  # of the slices before
        self._num_text_bytes = 0
        self.num_rows: list[int] = []

    @property
    def position(self) -> int:
        """Bytes of the input files read so far."""
        return self._position + (0 if self._reader is None else self._reader.position)

    @property
    def num_text_bytes(self) -> int:
        """Read so far, after decompression."""
        return self._num_text_bytes + (0 if self._reader is None else self._reader.num_text_bytes)

    def blocks(self) -> Generator[Block]:
        """Yields all blocks, in order."""
        for slice_ in self._shard.slices:
            with closing(self._making.open(slice_)) as reader:
                self._reader = reader
                yield from reader.blocks()
                self._reader = None
                self._position += reader.num_bytes
                self._num_text_bytes += reader.num_text_bytes
                self.num_rows.append(reader.num_rows)
