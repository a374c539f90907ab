"""One shard into its part: blocks of text tokenized by threads, and written in order.

Threads suffice up to some eight: nearly all the time is spent in native code that lets others run, and they share
memory, so that blocks are never copied between processes. More come from more processes, each with shards of its own.

A process can die of a text: native code may overflow its stack, or abort. So `KEY.journal` holds the bundles of records
that threads are at (a write of some 100 bytes for each, of megabytes of text). After a death these are suspects: they
are tokenized one record at a time, with nothing beside them, and the journal names the record. Dying there too, or
taking for ever, condemns it: it is a bad record from then on. Only a process of ours that saw the death can do so, and
only if the cause lies in the process itself: one that was killed from outside says nothing about its records.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tokenloom.errors import StuckRecordError
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts
from tokenloom.indexed.roles import RolesWriter
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.inputs.lines import count_lines_before
from tokenloom.inputs.record_format import SliceReader
from tokenloom.inputs.records import BadLine, Block, LeftOut, joined_left_out
from tokenloom.machine import boot_id
from tokenloom.preprocess.blocks import Isolating, RejectedLines, TokenizedBlock, singles, sole_record
from tokenloom.preprocess.folder import journal_path
from tokenloom.preprocess.part import ShardReport, part_hashes_path, part_pair, records_path
from tokenloom.preprocess.recipe import Making
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.preprocess.sharded import Counts, RunShard
from tokenloom.storage.atomic import publish_bytes, write_at
from tokenloom.tokenizers.engines import one_thread_per_call

if TYPE_CHECKING:
    from tokenloom.preprocess.plan import JobPlan, PlannedShard

Given = TypeVar("Given")
Made = TypeVar("Made")

_SECONDS_OF_A_LOOK = 1.0
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_MOST_BYTES = 1 << 20

Place = tuple[str, int]
"""The path of a file, and the number of a record as its block counts."""

ALLOW_MORE = "allow more and run the same command again, or correct the input"


class StuckError(Exception, Generic[Given]):
    """A thread has not come to an end with what it was given."""

    def __init__(self, given: Given) -> None:
        super().__init__("a thread is stuck")
        self.given = given


class WorkerThreads(Executor):
    """Threads that can be left behind: native code cannot be interrupted, and the end of Python must not wait for it.

    Attributes:
        count: likewise.
    """

    def __init__(self, count: int) -> None:
        self.count: int = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_left = False
        self._threads = [
            threading.Thread(target=_work_off, args=(self._tasks,), name=f"tokenloom_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Has a thread call a function."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, arguments, named))
        return future

    def leave(self) -> None:
        """Notes that a thread will not end."""
        self._is_left = True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base
        """Ends the threads, without starting what waits; does not wait for them if one of them will not end."""
        while cancel_futures or self._is_left:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if wait and not self._is_left:
            for thread in self._threads:
                thread.join()


def _work_off(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function, arguments, named = task
        del task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments, **named))
            except BaseException as error:  # noqa: BLE001 - told where the result is asked for, an interruption too
                future.set_exception(error)
        del future, function, arguments, named  # not held while waiting


@contextmanager
def worker_threads(count: int) -> Iterator[WorkerThreads]:
    """Leaves without starting what waits; blocks being worked on are finished, and their results dropped."""
    executor = WorkerThreads(count)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def in_order(
    executor: WorkerThreads,
    work: Callable[[Given], Made],
    blocks: Iterable[Given],
    *,
    num_ahead: int,
    timeout_seconds: float,
    pulse: Callable[[], object],
) -> Iterator[Made]:
    """Yields what is made of the blocks, in order; at most `num_ahead` are read and not yielded.

    Args:
        executor: whose threads work.
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
            executor.leave()
            raise StuckError(block)
        return future.result()

    for block in blocks:
        running.append((executor.submit(work, block), block))
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
    """The journal of a shard, while one process works on it; safe from several threads.

    Args:
        path: path of the file. What an attempt before has left in it is read.

    Attributes:
        suspects: where the records begin that a process was at that died.
        condemned: why a record is bad, by its place.
        num_begun: how often something was begun.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        found = _read(path)
        self.suspects = {_place(each) for each in [*found.get("suspects", ()), *found.get("running", ())]}
        self.condemned: dict[Place, str] = {(each[0], each[1]): each[2] for each in found.get("condemned", ())}
        self.num_begun: int = 0
        self._running: list[Place] = []
        self._alone: Place | None = None
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def close(self, *, keeps: bool) -> None:
        """Ends the work; what the journal says goes, unless it is kept for the next attempt."""
        os.close(self._descriptor)
        if not keeps:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Notes that a thread is at a bundle that begins there."""
        with self._lock:
            self._running.append(place)
            self._write()
        try:
            yield
            self.suspects.discard(place)
        finally:
            with self._lock:
                self._running.remove(place)
                self._write()

    @contextmanager
    def alone_at(self, place: Place) -> Iterator[None]:
        """Notes that a record is tokenized, and nothing else."""
        with self._lock:
            self._alone = place
            self._write()
        yield
        self._alone = None

    def _write(self) -> None:
        self.num_begun += 1
        condemned = [[*place, reason] for place, reason in self.condemned.items()]
        state = {
            "running": self._running,
            "suspects": sorted(self.suspects),
            "alone": self._alone,
            "condemned": condemned,
        }
        write_at(self._descriptor, memoryview(json.dumps(state).encode() + b"\n"), 0)


class JournaledWork:
    """Does work on bundles of blocks, and notes in a journal what it is at; see `ShardJournal`.

    While the journal has suspects, nothing else may be worked on at the same time.
    """

    def __init__(self, work: Isolating, journal: ShardJournal) -> None:
        self._work = work
        self._journal = journal

    def __call__(self, bundle: Sequence[Block]) -> list[TokenizedBlock]:
        """Returns what is made of some blocks."""
        place = (bundle[0].path, bundle[0].first_record)
        with self._journal.at(place):
            if place not in self._journal.suspects:
                return self._work(bundle)
            return [made for single in singles(bundle) for made in self._alone(single)]

    def _alone(self, single: Sequence[Block]) -> list[TokenizedBlock]:
        place = (single[0].path, single[0].first_record)
        if (reason := self._journal.condemned.get(place)) is not None:
            return [self._work.rejected(sole_record(single, reason))]
        with self._journal.alone_at(place):
            return self._work(single)


def condemn(path: str, reason: str) -> Place | None:
    """Makes the record a bad one that the process at a shard, which has ended of itself, was at alone.

    Returns:
        its place; None if the process was at several.
    """
    found = _read(path)
    if found.get("alone") is None:
        return None
    place = _place(found["alone"])
    found["suspects"] = [*found.get("suspects", ()), *found.get("running", ())]
    found |= {"alone": None, "running": [], "condemned": [*found.get("condemned", ()), [*place, reason]]}
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        write_at(descriptor, memoryview(json.dumps(found).encode() + b"\n"), 0)
    finally:
        os.close(descriptor)
    return place


def places_at(path: str) -> list[Place]:
    """Returns where a process was that left a journal: the record, or the beginnings of bundles."""
    found = _read(path)
    alone = found.get("alone")
    return [_place(alone)] if alone is not None else [_place(each) for each in found.get("running", ())]


def _place(value: Any) -> Place:
    path, number = value
    return str(path), int(number)


def _read(path: str) -> dict[str, Any]:
    """Returns what a journal says; nothing if there is none, or it was cut off."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(_MOST_BYTES).partition(b"\n")[0])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def shard_worker(plan: JobPlan, *, num_workers: int) -> Iterator[RunShard]:
    """Yields what tokenizes shards, one after the other; its threads and engines live as long as the `with` block."""
    with one_thread_per_call(), worker_threads(num_workers) as executor:
        # Not in this thread, where an interruption is raised: `orjson` and `gigatoken` crash on one as they start.
        first = plan.shards[0].slices[0]
        making: Making = executor.submit(plan.recipe.making, first, num_workers=num_workers).result()
        yield partial(_run, plan, making, executor)


def _run(
    plan: JobPlan,
    making: Making,
    executor: WorkerThreads,
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
        _Part(plan, shard, part_prefix) as part,
    ):
        for made in _tokenized(plan, making, executor, making.bundles(blocks), journal):
            for block in made:
                part.write(block)
            if progress is not None:
                progress(part.counts(num_file_bytes=reading.position, num_text_bytes=reading.num_text_bytes))
        return part.publish(reading, making, started=started)


def _tokenized(
    plan: JobPlan,
    making: Making,
    executor: WorkerThreads,
    bundles: Iterator[list[Block]],
    journal: ShardJournal,
) -> Iterator[list[TokenizedBlock]]:
    """Yields what becomes of bundles, in order."""
    seconds = plan.settings.record_timeout_seconds
    work = JournaledWork(Isolating(making.work), journal)
    try:
        yield from in_order(
            executor,
            work,
            bundles,
            num_ahead=0 if journal.suspects else executor.count + 1,  # nothing beside a suspect
            timeout_seconds=seconds,
            pulse=lambda: journal.num_begun,
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
    journal, keeps = ShardJournal(journal_path(part_prefix)), False
    try:
        yield journal
    except StuckRecordError:
        keeps = True
        raise
    finally:
        journal.close(keeps=keeps)


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


@dataclass(slots=True)
class _Part:
    """The files of a part. The report comes last, so that a part without one is as if it were not there.

    They are not flushed to the disk one by one: after a loss of power the checksums tell which must be done again.
    """

    plan: JobPlan
    shard: PlannedShard
    prefix: str
    num_documents: int = 0
    num_blank_lines: int = 0
    num_doubled: int = 0
    num_tokens: int = 0
    left_out: list[tuple[LeftOut, int]] = field(default_factory=list)
    hashes: list[DocumentHashes] = field(default_factory=list)
    text_hashes: list[tuple[DocumentHashes, ...]] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    largest_token: int = -1
    builders: list[IndexedDatasetBuilder] = field(default_factory=list)
    roles: list[RolesWriter] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    rejected: RejectedLines = field(init=False)

    def __enter__(self) -> Self:
        recipe = self.plan.recipe
        with ExitStack() as stack:  # undoes what was opened if one fails
            for number in range(len(self.plan.columns)):
                path = bin_path(part_pair(self.prefix, number))
                builder = IndexedDatasetBuilder(
                    path,
                    recipe.dtype,
                    recipe.is_multimodal,
                    checksums=True,
                    durable=False,
                    exclusive=False,
                )
                self.builders.append(stack.enter_context(builder))
                if recipe.has_roles:
                    sha256 = recipe.tokenizer.sha256
                    self.roles.append(RolesWriter(part_pair(self.prefix, number), tokenizer_sha256=sha256))
            self.rejected = RejectedLines(self.prefix, skip=not self.plan.settings.bad_records.allows_none)
            stack.callback(self.rejected.close)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def write(self, block: TokenizedBlock) -> None:
        """Appends the documents of a block, and sets its bad records aside."""
        for builder, column in zip(self.builders, block.columns, strict=True):
            builder.append_block(column.tokens, column.lengths, document_ends=column.document_ends, modes=column.modes)
            self.num_tokens += len(column.tokens)
        for writer, column in zip(self.roles, block.columns, strict=bool(self.roles)):
            if (parts := column.roles) is not None:
                writer.append(parts.counts, parts.stops, parts.kinds, lengths=column.lengths)
        if len(block.left_out) or not self.left_out:
            self.left_out.append((block.left_out, block.num_records))
        else:  # which keeps nothing of blocks with nothing unusual
            left_out, num_before = self.left_out[-1]
            self.left_out[-1] = (left_out, num_before + block.num_records)
        if block.hashes is not None:
            self.hashes.append(block.hashes)
        self.text_hashes.append(tuple(column.hashes for column in block.columns if column.hashes is not None))
        self.num_documents += block.num_documents
        self.num_blank_lines += block.num_blank_lines
        self.num_doubled += block.num_doubled
        self.numbers.update(block.numbers)
        self.largest_token = max(self.largest_token, -1 if block.largest_token is None else block.largest_token)
        for bad_line in block.bad_lines:
            self._reject(bad_line)

    def _reject(self, bad_line: BadLine) -> None:
        budget = self.plan.settings.bad_records
        too_many = budget.is_exceeded(self.rejected.count + 1)
        if too_many:  # an error tells its place in the file; otherwise, that is known in the end
            bad_line = replace(bad_line, line=bad_line.line + self._num_before(bad_line.path))
        if too_many and not budget.allows_none:
            message = f"expected at most {budget} bad records, found one more: {bad_line.place}: {bad_line.reason}"
            raise bad_line.error(message, hint=f"{ALLOW_MORE}; what is done is kept")
        self.rejected.add(bad_line)

    def _num_before(self, path: str) -> int:
        """Returns the number of lines of a file before this shard, where the shard does not count them."""
        slices = (slice_ for slice_ in self.shard.slices if slice_.file.path == path)
        return sum(count_lines_before(slice_) for slice_ in slices if slice_.numbers_records_from_its_start)

    def counts(self, *, num_file_bytes: int, num_text_bytes: int) -> Counts:
        """Returns what was done so far."""
        return {
            "num_file_bytes": num_file_bytes,
            "num_text_bytes": num_text_bytes,
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "num_rejected": self.rejected.count,
        }

    def publish(self, reading: _Reading, making: Making, *, started: float) -> ShardReport:
        """Makes the files appear, then the report, and returns that."""
        recipe = self.plan.recipe
        ledger = DocumentLedger(
            num_read=self.num_documents + self.num_blank_lines + self.rejected.count,
            num_kept=self.num_documents,
            num_blank=self.num_blank_lines,
            num_rejected=self.rejected.count,
        )
        files = tuple(slice_.file for slice_ in self.shard.slices)
        for number, builder in enumerate(self.builders):
            key = self.plan.columns[number]
            make = partial(recipe.manifest, files=files, key=key, split=None, ledger=ledger, engine=making.engine)
            if recipe.is_multimodal:
                make = partial(_with_largest_token, make, None if self.largest_token < 0 else self.largest_token)
            roles = self.roles[number] if self.roles else None
            builder.finalize(idx_path(part_pair(self.prefix, number)), manifest=make, roles=roles)
        left_out = joined_left_out(self.left_out)
        records_crc32 = _publish_arrays(records_path(self.prefix), [left_out]) if len(left_out) else None
        hashes_crc32 = text_hashes_crc32 = None
        if recipe.hashes_documents:
            hashes_crc32 = _publish_arrays(part_hashes_path(self.prefix), self.hashes)
        if self.plan.settings.document_hashes:
            text_hashes_crc32 = tuple(
                _publish_arrays(part_hashes_path(self.prefix, number), [each[number] for each in self.text_hashes])
                for number in range(len(self.builders))
            )
        self.rejected.publish()
        report = ShardReport(
            key=self.shard.key,
            slice_rows=tuple(reading.num_rows),
            num_documents=self.num_documents,
            num_blank_lines=self.num_blank_lines,
            num_rejected=self.rejected.count,
            num_doubled=self.num_doubled,
            num_text_bytes=reading.num_text_bytes,
            num_tokens=self.num_tokens,
            hashes_crc32=hashes_crc32,
            records_crc32=records_crc32,
            text_hashes_crc32=text_hashes_crc32,
            engine=making.engine,
            engine_reason=making.engine_reason,
            seconds=time.monotonic() - started,
            boot_id=boot_id(),
            numbers=dict(self.numbers),
        )
        publish_bytes(f"{self.prefix}.json", report.to_json())
        return report


def _publish_arrays(path: str, arrays: Sequence[LeftOut | DocumentHashes]) -> int:
    """Writes arrays as one file, and returns its checksum."""
    data = b"".join(each.tobytes() for each in arrays)
    publish_bytes(path, data)
    return zlib.crc32(data)


def _with_largest_token(
    make: Callable[[PairFacts], Manifest], largest_token: int | None, pair: PairFacts
) -> Manifest:  # the bytes of images are no tokens
    return make(replace(pair, largest_token=largest_token))
