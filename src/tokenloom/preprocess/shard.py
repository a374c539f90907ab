"""One shard into its part: blocks of text tokenized by threads, and written in order; last of all, a report.

Threads suffice up to some eight: nearly all the time is spent in native code that lets others run, and they share
memory, so that blocks are never copied between processes. More come from more processes, each with shards of its own.

A process can die of a text: native code may overflow its stack, or abort. So `KEY.journal` is there while a process
works on a shard, and one that was left behind tells of a death. Records are then tokenized one at a time, with nothing
beside them, and the journal names each. Dying there too, or taking for ever, condemns it: it is a bad record from then
on. Only a process of ours that saw the death can do so, and only if the cause lies in the process itself: one that was
killed from outside says nothing about its records.

Files of a part are not flushed to the disk one by one: after a loss of power the checksums tell which to make again.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError, StuckRecordError, TokenloomError
from tokenloom.indexed.columns import ColumnWriter
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts, manifest_of, pair_facts
from tokenloom.indexed.roles import NAME, read_roles, roles_writer
from tokenloom.indexed.verify import check_columns
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.inputs.lines import count_lines_before
from tokenloom.inputs.record_format import SliceReader
from tokenloom.inputs.records import BadLine, Block, LeftOut
from tokenloom.machine import boot_id
from tokenloom.preprocess.blocks import TokenizedBlock, isolated, json_line, rejected, rejected_path, singles
from tokenloom.preprocess.folder import JobFolder, journal_path
from tokenloom.preprocess.sharded import Counts, RunShard
from tokenloom.storage.atomic import PendingFile, publish_bytes, storage_errors
from tokenloom.storage.json_files import Crc32, UnusableJsonError, from_versioned, parse_json, versioned_members_of
from tokenloom.storage.local import map_file
from tokenloom.tokenizers.engines import one_thread_per_call

if TYPE_CHECKING:
    from tokenloom.preprocess.plan import JobPlan, Making, PlannedShard

Made = TypeVar("Made")

_VERSION = 2
_COUNTED = ("num_documents", "num_blank_lines", "num_rejected", "num_text_bytes", "num_tokens")
_SECONDS_OF_A_LOOK = 1.0
ALLOW_MORE = "allow more and run the same command again, or correct the input"

RECORDS = "records"
"""Array of the records that gave no document, numbered over all slices of the shard from 0; not there without any."""

HASHES = "hashes"
"""Array of the hashes of documents; of those of the texts under one key, with `_` and its number behind."""

Place = tuple[str, int]
"""The path of a file, and the number of a record as its block counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What came out of a shard.

    Attributes:
        key: key of the shard.
        slice_rows: records in each of its slices, blank lines and bad records included.
        num_documents: number of documents in each pair, those without tokens included.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records set aside.
        num_text_bytes: read, after decompression.
        num_tokens: number of tokens under all keys.
        arrays: checksums of the arrays that lie beside the pairs, by name.
        engine, engine_reason: what tokenized, and why.
        seconds: the shard took.
        boot_id: boot id of the machine that did it, see `damaged_parts`.
        numbers: further ones of the recipe, by name.
    """

    key: str
    slice_rows: tuple[int, ...]
    num_documents: int
    num_blank_lines: int
    num_rejected: int
    num_text_bytes: int
    num_tokens: int
    arrays: Mapping[str, Crc32]
    engine: str
    engine_reason: str
    seconds: float
    boot_id: str
    numbers: Mapping[str, int]

    @property
    def counts(self) -> Counts:
        """What was done, by name."""
        return {name: getattr(self, name) for name in _COUNTED}

    def to_json(self) -> bytes:
        """Returns the report as a file holds it."""
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardReport:
        """Returns the report in a file."""
        try:
            return from_versioned(cls, parse_json(data), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a shard: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove it; the shard is then done again") from error


def part_pair(part_prefix: str, column: int) -> str:
    """Returns the prefix of the pair of a key, by its number, in a part."""
    return f"{part_prefix}_{column}"


def part_array(part_prefix: str, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Returns an array of a part, mapped without a descriptor; hashes as uint64[num_documents, 2]."""
    return map_file(f"{part_prefix}.{name}").view(dtype).reshape((-1,) if name == RECORDS else (-1, 2))


@dataclass(slots=True)
class PartWriter:
    """Writes the files of a part, and in the end its report: a part without one is as if it were not there.

    Args:
        plan: plan of the job.
        shard: shard that becomes the part.
        prefix: what the names of its files begin with.

    Attributes:
        counts: what was done so far, by name; whoever reads sets `num_text_bytes`.
    """

    plan: JobPlan
    shard: PlannedShard
    prefix: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    largest_token: int = -1
    numbers: Counter[str] = field(default_factory=Counter)
    _num_records: int = 0
    _left_out: list[LeftOut] = field(default_factory=list)
    _arrays: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _builders: list[IndexedDatasetBuilder] = field(default_factory=list)
    _roles: list[ColumnWriter] = field(default_factory=list)
    _rejected: PendingFile | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        recipe = self.plan.recipe
        if recipe.hashes_documents:
            self._arrays[HASHES] = []
        with ExitStack() as stack:  # undoes what was opened if one fails
            for number in range(len(self.plan.columns)):
                path = bin_path(part_pair(self.prefix, number))
                builder = IndexedDatasetBuilder(
                    path, recipe.dtype, recipe.is_multimodal, checksums=True, durable=False, exclusive=False
                )
                self._builders.append(stack.enter_context(builder))
                if recipe.settings.document_hashes:
                    self._arrays[f"{HASHES}_{number}"] = []
                if recipe.has_roles:
                    sha256 = recipe.tokenizer.sha256
                    writer = roles_writer(part_pair(self.prefix, number), tokenizer_sha256=sha256, durable=False)
                    stack.callback(writer.discard)
                    self._roles.append(writer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, block: TokenizedBlock) -> None:
        """Appends the documents of a block, and sets its bad records aside."""
        for number, (builder, column) in enumerate(zip(self._builders, block.columns, strict=True)):
            builder.append_block(column.tokens, column.lengths, document_ends=column.document_ends, modes=column.modes)
            self.counts["num_tokens"] += len(column.tokens)
            if column.hashes is not None:
                self._arrays[f"{HASHES}_{number}"].append(column.hashes)
        for writer, column in zip(self._roles, block.columns, strict=bool(self._roles)):
            if column.roles is not None:
                writer.append(column.roles)
        if len(block.left_out):
            self._left_out.append(block.left_out + self._num_records)
        self._num_records += block.num_records
        if block.hashes is not None:
            self._arrays[HASHES].append(block.hashes)
        self.counts["num_documents"] += block.num_documents
        self.counts["num_blank_lines"] += block.num_blank_lines
        self.numbers.update(block.numbers)
        self.largest_token = max(self.largest_token, -1 if block.largest_token is None else block.largest_token)
        for bad_line in block.bad_lines:
            self._reject(bad_line)

    def _reject(self, bad: BadLine) -> None:
        budget = self.plan.settings.bad_records
        if budget.is_exceeded(self.counts["num_rejected"] + 1):
            # An error tells the place in the file; otherwise, that is known in the end.
            slices = (slice_ for slice_ in self.shard.slices if slice_.file.path == bad.path)
            num_before = sum(count_lines_before(each) for each in slices if each.numbers_records_from_its_start)
            bad = replace(bad, line=bad.line + num_before)
            if budget.allows_none:
                hint = f"correct the {bad.unit}, or let bad {bad.unit}s be set aside in a file with `bad_records`"
                message = f"{bad.place}: {bad.reason}"
                raise bad.error(message, hint=hint)
            message = f"expected at most {budget} bad records, found one more: {bad.place}: {bad.reason}"
            raise bad.error(message, hint=f"{ALLOW_MORE}; what is done is kept")
        if self._rejected is None:
            self._rejected = PendingFile(rejected_path(self.prefix))
            self._stack.callback(self._rejected.discard)
        number = {} if bad.unit == "file" else {bad.unit: bad.line}
        record: dict[str, object] = {"file": bad.path, **number, "reason": bad.reason}
        try:
            record["text"] = bad.data.decode("utf-8")
        except UnicodeDecodeError:
            record["base64"] = base64.b64encode(bad.data).decode("ascii")
        self._rejected.write(json_line(record))
        self.counts["num_rejected"] += 1

    def publish(self, making: Making, *, slice_rows: tuple[int, ...], started: float) -> ShardReport:
        """Makes the files appear, then the report, and returns that."""
        recipe = self.plan.recipe
        kept, blank, rejected = (self.counts[name] for name in _COUNTED[:3])
        num_read = kept + blank + rejected
        ledger = DocumentLedger(num_read=num_read, num_kept=kept, num_blank=blank, num_rejected=rejected)
        files = tuple(slice_.file for slice_ in self.shard.slices)

        def manifest(key: str, pair: PairFacts) -> Manifest:
            if recipe.is_multimodal:  # the bytes of images are no tokens
                pair = replace(pair, largest_token=None if self.largest_token < 0 else self.largest_token)
            return recipe.manifest(pair, files=files, key=key, split=None, ledger=ledger, engine=making.engine)

        for number, builder in enumerate(self._builders):
            make = partial(manifest, self.plan.columns[number])
            columns = {NAME: self._roles[number]} if self._roles else {}
            builder.finalize(idx_path(part_pair(self.prefix, number)), manifest=make, columns=columns)
        if self._left_out:
            self._arrays[RECORDS] = list(self._left_out)
        checksums = {}
        for name, arrays in self._arrays.items():
            data = b"".join(each.tobytes() for each in arrays)
            publish_bytes(f"{self.prefix}.{name}", data)
            checksums[name] = zlib.crc32(data)
        if self._rejected is not None:
            self._rejected.publish()
        report = ShardReport(
            key=self.shard.key,
            slice_rows=slice_rows,
            **self.counts,
            arrays=checksums,
            engine=making.engine,
            engine_reason=making.engine_reason,
            seconds=time.monotonic() - started,
            boot_id=boot_id(),
            numbers=dict(self.numbers),
        )
        publish_bytes(f"{self.prefix}.json", report.to_json())
        return report


def damaged_parts(plan: JobPlan, folder: JobFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are not what was written, and in what.

    Sizes are compared for all; the bytes are read only of parts that this machine, as it runs now, did not write: what
    it wrote it still has in memory, or on disk.
    """
    damaged: list[tuple[PlannedShard, str]] = []
    for shard in plan.shards:
        try:
            _check_part(plan, folder, shard)
        except TokenloomError as error:
            damaged.append((shard, error.message))
    return damaged


def _check_part(plan: JobPlan, folder: JobFolder, shard: PlannedShard) -> None:
    if (report := folder.report(shard)) is None:
        message = "its report is missing"
        raise StorageError(message)
    prefix, recipe = folder.part_prefix(shard), plan.recipe
    for number in range(len(plan.columns)):
        pair = part_pair(prefix, number)
        dataset = IndexedDataset(pair, multimodal=recipe.is_multimodal)
        noted = None if (manifest := manifest_of(dataset)) is None else manifest.pair
        if recipe.has_roles:
            read_roles(dataset)
        found = noted
        if noted is not None and report.boot_id != boot_id():
            found = pair_facts(dataset)
            check_columns(dataset)
            if recipe.is_multimodal:  # of the texts alone
                found = replace(found, largest_token=noted.largest_token)
        if noted is None or found != noted:
            message = f"`{pair}` does not hold what its manifest says"
            raise StorageError(message)
    for name, crc32 in report.arrays.items():
        if zlib.crc32(map_file(f"{prefix}.{name}").data) != crc32:
            message = f"`{prefix}.{name}` does not hold what its report says"
            raise StorageError(message)
    if report.num_rejected and not os.path.exists(rejected_path(prefix)):
        message = f"`{rejected_path(prefix)}` is missing"
        raise StorageError(message)


class WorkerThreads:
    """Threads that can be left behind: native code cannot be interrupted, and the end of Python must not wait for it.

    Attributes:
        count: likewise.
        is_left: whether one of them will not end.
    """

    def __init__(self, count: int) -> None:
        self.count: int = count
        self.is_left: bool = False
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"tokenloom_{k}", daemon=True) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], Made]) -> Future[Made]:
        """Has a thread call something."""
        future: Future[Made] = Future()
        self._tasks.put((future, call))
        return future

    def __enter__(self) -> Self:
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


def _is_done(future: Future[Any], timeout_seconds: float, pulse: Callable[[], object]) -> bool:
    """Waits until something is done; returns whether it is, after so long without another value of `pulse`."""
    look = min(_SECONDS_OF_A_LOOK, timeout_seconds / 4)
    waited, seen = 0.0, None
    while not future.done():
        began = time.monotonic()
        with suppress(TimeoutError):
            future.exception(timeout=look)
        waited += min(time.monotonic() - began, 2 * look)  # time in which this process was stopped does not count
        if (now := pulse()) != seen:
            waited, seen = 0.0, now
        if waited > timeout_seconds:
            return future.done()
    return True


class ShardJournal:
    """The journal of a shard, while a process works on it; it stays where records were found that never end.

    Attributes:
        is_careful: whether an earlier attempt has left one, so that records are to be tokenized one by one.
        num_noted: how many records were begun so.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_careful: bool = os.path.exists(path)
        self.num_noted: int = 0
        self._condemned: list[list[Any]] = _read_journal(path).get("condemned", [])
        self.note(None)

    def note(self, place: Place | None) -> None:
        """Notes the record that is tokenized; None for none."""
        self.num_noted += 1
        _write_journal(self._path, place, self._condemned)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, StuckRecordError):
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def work(self, work: Callable[[Sequence[Block]], TokenizedBlock], bundle: Sequence[Block]) -> list[TokenizedBlock]:
        """Returns what is made of some blocks; of the records one by one, if that is to be."""
        if not self.is_careful:
            return isolated(work, bundle)
        condemned = {(path, number): reason for path, number, reason in self._condemned}
        made: list[TokenizedBlock] = []
        for single in singles(bundle):
            place = single[0].path, single[0].first_record
            if place in condemned:
                made.append(rejected(work, single, condemned[place]))
            else:
                self.note(place)
                made += isolated(work, single)
        self.note(None)
        return made


def condemn(path: str, reason: str) -> Place | None:
    """Makes the record a bad one that the process at a shard, which has ended of itself, was at alone.

    Returns:
        its place; None if that is not known.
    """
    found = _read_journal(path)
    if (place := found.get("at")) is None:
        return None
    _write_journal(path, None, [*found["condemned"], [*place, reason]])
    return place[0], place[1]


def _read_journal(path: str) -> dict[str, Any]:
    """Returns what a journal says; nothing if there is none, or it was cut off."""
    try:
        with open(path, "rb") as stream:
            return dict(json.load(stream))
    except (OSError, ValueError, TypeError):
        return {}


def _write_journal(path: str, place: Place | None, condemned: list[list[Any]]) -> None:
    with storage_errors("write", path), open(path, "w", encoding="utf-8") as stream:
        json.dump({"at": place, "condemned": condemned}, stream)


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
    reading = _Reading()
    with (
        ShardJournal(journal_path(part_prefix)) as journal,
        closing(reading.blocks(shard, making)) as blocks,
        PartWriter(plan, shard, part_prefix) as part,
    ):
        for made in _tokenized(plan, making, threads, making.bundles(blocks), journal):
            for block in made:
                part.write(block)
            num_file_bytes, part.counts["num_text_bytes"] = reading.num_bytes
            if progress is not None:
                progress({"num_file_bytes": num_file_bytes, **part.counts})
        _, part.counts["num_text_bytes"] = reading.num_bytes
        return part.publish(making, slice_rows=tuple(reading.num_rows), started=started)


def _tokenized(
    plan: JobPlan, making: Making, threads: WorkerThreads, bundles: Iterator[list[Block]], journal: ShardJournal
) -> Iterator[list[TokenizedBlock]]:
    """Yields what becomes of bundles, in order; as many are read ahead as keep the threads busy."""
    seconds = plan.settings.record_timeout_seconds
    num_ahead = 0 if journal.is_careful else threads.count + 1
    running: deque[tuple[Future[list[TokenizedBlock]], list[Block]]] = deque()

    def next_result() -> list[TokenizedBlock]:
        future, [first, *_] = running.popleft()
        if not _is_done(future, seconds, lambda: journal.num_noted):
            threads.is_left = True
            place = "" if first.unit == "file" else f" from {first.unit} {first.first_record} on"
            message = f"tokenising `{first.path}`{place} takes longer than {seconds:g} seconds"
            hint = "the same command again finds the record, and treats it as a bad one"
            raise StuckRecordError(message, hint=hint)
        return future.result()

    for bundle in bundles:
        running.append((threads.submit(partial(journal.work, making.work, bundle)), bundle))
        del bundle  # the thread's to drop
        if len(running) > num_ahead:
            yield next_result()
    while running:
        yield next_result()


class _Reading:
    """How far the reading of a shard's slices is, one slice after the other."""

    def __init__(self) -> None:
        self._reader: SliceReader | None = None
        self._before = (0, 0)
        self.num_rows: list[int] = []

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes of the input files that were read so far, and bytes of text, after decompression."""
        file_bytes, text_bytes = self._before
        if self._reader is None:
            return self._before
        return file_bytes + self._reader.position, text_bytes + self._reader.num_text_bytes

    def blocks(self, shard: PlannedShard, making: Making) -> Generator[Block]:
        """Yields all blocks, in order."""
        for slice_ in shard.slices:
            with closing(making.open(slice_)) as reader:
                self._reader = reader
                yield from reader.blocks()
                self._reader = None
                file_bytes, text_bytes = self._before
                self._before = file_bytes + reader.num_bytes, text_bytes + reader.num_text_bytes
                self.num_rows.append(reader.num_rows)
