"""Tokenizes a shard into part files: threads tokenize blocks, the main thread writes the results in order.

Up to about eight threads make a process faster: most time is spent in native code that releases the GIL, and threads
share memory: no block is copied between processes. To use more processors, run several processes on different shards.

A text can crash a process: native code may overflow its stack or abort. So `KEY.journal` exists while a process works
on a shard, and a leftover journal shows a crash. After a crash, the shard is tokenized one record at a time, and the
journal contains the place of the current record. A record that then crashes or hangs its process is bad. Only the
parent process declares a record bad, and only if the child itself crashed or hung: a kill from outside does not count.

The files of a part are not fsynced: after a power loss, checksums find the damaged files.
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
from tokenloom.inputs.records import BadLine, Block, SkippedRecords
from tokenloom.machine import boot_id
from tokenloom.preprocess.blocks import TokenizedBlock, bad_record, bisect_failures, json_line, rejected_path, singles
from tokenloom.preprocess.folder import JobFolder, Silence, journal_path
from tokenloom.preprocess.sharded import Counts, RunShard
from tokenloom.storage.atomic import PendingFile, publish_bytes, storage_errors
from tokenloom.storage.json_files import Crc32, UnusableJsonError, from_versioned, parse_json, versioned_members_of
from tokenloom.storage.local import map_file
from tokenloom.tokenizers.engines import one_thread_per_call

if TYPE_CHECKING:
    from tokenloom.preprocess.job_plan import BlockPipeline, JobPlan, PlannedShard

Made = TypeVar("Made")

_VERSION = 2
_COUNTED = ("num_documents", "num_blank_lines", "num_rejected", "num_text_bytes", "num_tokens")
_MOST_POLL_SECONDS = 1.0
ALLOW_MORE = "raise `bad_records` and run the same command again, or correct the input"

RECORDS = "records"
"""Name of the array of indices of skipped records, counted from 0 over all slices of a shard; absent if empty."""

HASHES = "hashes"
"""Name of the array with a hash of each document's texts for all keys; `hashes_N` is for the key with index N."""

Place = tuple[str, int]
"""The path of a file and the number of a record in it, counted like `Block.first_record`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """The report of a finished shard.

    Attributes:
        key: key of the shard.
        slice_rows: number of records in each slice of the shard, including blank lines and bad records.
        num_documents: number of documents in the part, including documents without tokens; equal for all JSON keys.
        num_blank_lines, num_rejected: number of blank lines, and number of bad records.
        num_text_bytes: size of the decompressed input in bytes.
        num_tokens: number of tokens, summed over all JSON keys.
        arrays: CRC-32 of each array file of the part, by name (`RECORDS`, `HASHES`).
        engine, engine_reason: name of the tokenization engine, and the reason for the choice.
        seconds: duration of the shard in seconds.
        boot_id: boot id of the machine at the time of writing the part; see `damaged_parts`.
        numbers: counts that are specific to the recipe, by name; see `CorpusSummary.numbers`.
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
        """The fields of the report that a job sums over its shards (`_COUNTED`), by name."""
        return {name: getattr(self, name) for name in _COUNTED}

    def to_json(self) -> bytes:
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardReport:
        """Parses the report file of a shard; raises `StorageError` if it is damaged."""
        try:
            return from_versioned(cls, parse_json(data), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a shard: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove the file; the shard is then done again") from error


def part_pair(part_prefix: str, column: int) -> str:
    """Returns the path prefix of a part's `.bin`/`.idx` pair for the key with index `column`."""
    return f"{part_prefix}_{column}"


def part_array(part_prefix: str, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Memory-maps the array `name` of a part: shape [num_skipped] for `RECORDS`, [num_documents, 2] for hashes."""
    return map_file(f"{part_prefix}.{name}").view(dtype).reshape((-1,) if name == RECORDS else (-1, 2))


@dataclass(slots=True)
class PartWriter:
    """A writer of the files of a part. `publish` writes the report last: the report marks the shard as done.

    Attributes:
        counts: counts so far, by name; the caller sets `num_text_bytes`.
    """

    plan: JobPlan
    shard: PlannedShard
    prefix: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    largest_token: int = -1
    numbers: Counter[str] = field(default_factory=Counter)
    _num_records: int = 0
    _skipped: list[SkippedRecords] = field(default_factory=list)
    _arrays: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _builders: list[IndexedDatasetBuilder] = field(default_factory=list)
    _roles: list[ColumnWriter] = field(default_factory=list)
    _rejected: PendingFile | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        recipe = self.plan.recipe
        if recipe.hashes_documents:
            self._arrays[HASHES] = []
        with ExitStack() as stack:  # closes the other files if one cannot be opened
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
        """Appends the documents and the bad records of a block."""
        for number, (builder, column) in enumerate(zip(self._builders, block.columns, strict=True)):
            builder.append_block(column.tokens, column.lengths, document_ends=column.document_ends, modes=column.modes)
            self.counts["num_tokens"] += len(column.tokens)
            if column.hashes is not None:
                self._arrays[f"{HASHES}_{number}"].append(column.hashes)
        for writer, column in zip(self._roles, block.columns, strict=bool(self._roles)):
            if column.roles is not None:
                writer.append(column.roles)
        if len(block.skipped):
            self._skipped.append(block.skipped + self._num_records)
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
            # This error needs the line number in the file; those of stored records are computed at the end of the job.
            slices = (slice_ for slice_ in self.shard.slices if slice_.file.path == bad.path)
            num_before = sum(count_lines_before(each) for each in slices if each.numbers_records_from_its_start)
            bad = replace(bad, line=bad.line + num_before)
            if budget.most == 0:
                hint = f"correct the {bad.unit}, or set `bad_records` to write bad {bad.unit}s to a separate file"
                raise bad.error(f"{bad.place}: {bad.reason}", hint=hint)
            message = f"{bad.place}: {bad.reason}; found more than {budget} bad records"
            raise bad.error(message, hint=f"{ALLOW_MORE}; finished shards are kept")
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

    def publish(self, pipeline: BlockPipeline, *, slice_rows: tuple[int, ...], started: float) -> ShardReport:
        """Publishes the files of the part, then the report; returns the report."""
        recipe = self.plan.recipe
        kept, blank, rejected = (self.counts[name] for name in _COUNTED[:3])
        num_read = kept + blank + rejected
        ledger = DocumentLedger(num_read=num_read, num_kept=kept, num_blank=blank, num_rejected=rejected)
        files = tuple(slice_.file for slice_ in self.shard.slices)

        def manifest(number: int, pair: PairFacts) -> Manifest:
            if recipe.is_multimodal:  # the bytes of images do not count as tokens
                pair = replace(pair, largest_token=None if self.largest_token < 0 else self.largest_token)
            planned = replace(self.plan.outputs[0].datasets[number], split=None)  # the first split: one dataset per key
            return recipe.manifest(pair, planned, files=files, ledger=ledger, engine=pipeline.engine)

        for number, builder in enumerate(self._builders):
            make = partial(manifest, number)
            columns = {NAME: self._roles[number]} if self._roles else {}
            builder.finalize(idx_path(part_pair(self.prefix, number)), manifest=make, columns=columns)
        if self._skipped:
            self._arrays[RECORDS] = list(self._skipped)
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
            engine=pipeline.engine,
            engine_reason=pipeline.engine_reason,
            seconds=time.monotonic() - started,
            boot_id=boot_id(),
            numbers=dict(self.numbers),
        )
        publish_bytes(f"{self.prefix}.json", report.to_json())
        return report


def damaged_parts(plan: JobPlan, folder: JobFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are damaged, each with a description of the damage.

    Checks the sizes of all files and the checksums of arrays. Checks the checksums of pairs only if they were written
    before the last boot or by another machine: files written since the boot are intact in the page cache or on disk.
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
        raise StorageError("its report is missing")
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
            if recipe.is_multimodal:  # the manifest's largest token covers only the texts
                found = replace(found, largest_token=noted.largest_token)
        if noted is None or found != noted:
            raise StorageError(f"`{pair}` has no manifest, or its counts or checksums differ from the manifest")
    for name, crc32 in report.arrays.items():
        if zlib.crc32(map_file(f"{prefix}.{name}").data) != crc32:
            raise StorageError(f"`{prefix}.{name}` does not have the checksum in the report `{prefix}.json`")
    if report.num_rejected and not os.path.exists(rejected_path(prefix)):
        raise StorageError(f"`{rejected_path(prefix)}` is missing")


class WorkerThreads:
    """A pool of daemon threads; a thread that hangs in native code does not keep Python from exiting.

    Attributes:
        count: number of threads.
        is_hung: whether a thread hangs, so that `__exit__` must not join the threads.
    """

    def __init__(self, count: int) -> None:
        self.count: int = count
        self.is_hung: bool = False
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"tokenloom_{k}", daemon=True) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], Made]) -> Future[Made]:
        future: Future[Made] = Future()
        self._tasks.put((future, call))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Discards queued tasks; waits for running tasks unless a thread hangs."""
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _thread in self._threads:
            self._tasks.put(None)
        for thread in () if self.is_hung else self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - `result()` raises it, also an interrupt
                future.set_exception(error)
            del task, future, call  # drop references while waiting


def _is_done(future: Future[Any], timeout_seconds: float, beat: Callable[[], object]) -> bool:
    """Waits until `future` is done or `beat()` is constant for `timeout_seconds`; returns whether `future` is done."""
    poll_seconds = min(_MOST_POLL_SECONDS, timeout_seconds / 4)
    silence = Silence(2 * poll_seconds)
    while not future.done():
        with suppress(TimeoutError):
            future.exception(timeout=poll_seconds)
        if silence.seconds(beat()) > timeout_seconds:
            return future.done()
    return True


class ShardJournal:
    """The journal of a shard: a file that exists while a process works on the shard, and stays after a crash or hang.

    Attributes:
        is_careful: whether an earlier attempt left a journal, so that records are tokenized one at a time.
        num_noted: number of writes to the journal, which serve as heartbeats.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_careful: bool = os.path.exists(path)
        self.num_noted: int = 0
        self._condemned: list[list[Any]] = _read_journal(path).get("condemned", [])
        self.note(None)

    def note(self, place: Place | None) -> None:
        """Notes the place of the record to tokenize next; None means that no record is being tokenized."""
        self.num_noted += 1
        _write_journal(self._path, place, self._condemned)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, StuckRecordError):
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def work(self, work: Callable[[Sequence[Block]], TokenizedBlock], bundle: Sequence[Block]) -> list[TokenizedBlock]:
        """Tokenizes blocks with `work`; one record at a time if `is_careful`."""
        if not self.is_careful:
            return bisect_failures(work, bundle)
        condemned = {(path, number): reason for path, number, reason in self._condemned}
        results: list[TokenizedBlock] = []
        for single in singles(bundle):
            place = single[0].path, single[0].first_record
            if place in condemned:
                results.append(bad_record(work, single, condemned[place]))
            else:
                self.note(place)
                results += bisect_failures(work, single)
        self.note(None)
        return results


def condemn(part_prefix: str, reason: str) -> Place | None:
    """Marks the last record of a dead process as bad; returns the place of this record, None if no record is known."""
    found = _read_journal(path := journal_path(part_prefix))
    if (place := found.get("at")) is None:
        return None
    _write_journal(path, None, [*found["condemned"], [*place, reason]])
    return place[0], place[1]


def _read_journal(path: str) -> dict[str, Any]:
    """Returns the content of a journal; empty if the file is missing or truncated."""
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
    """Yields a function that tokenizes a shard; its threads and engines end with the `with` block."""
    with one_thread_per_call(), WorkerThreads(num_workers) as threads:
        # In a worker thread, since `orjson` and `gigatoken` crash if an interrupt arrives while they start.
        pipeline = threads.submit(
            partial(plan.recipe.pipeline, plan.shards[0].slices[0], num_workers=num_workers)
        ).result()
        yield partial(_run, plan, pipeline, threads)


def _run(
    plan: JobPlan,
    pipeline: BlockPipeline,
    threads: WorkerThreads,
    shard: PlannedShard,
    part_prefix: str,
    *,
    progress: Callable[[Counts], None] | None = None,
) -> ShardReport:
    started = time.monotonic()
    reading = _Reading()
    with (
        ShardJournal(journal_path(part_prefix)) as journal,
        closing(reading.blocks(shard, pipeline)) as blocks,
        PartWriter(plan, shard, part_prefix) as part,
    ):
        for results in _tokenized(plan, pipeline, threads, pipeline.bundles(blocks), journal):
            for block in results:
                part.write(block)
            num_file_bytes, part.counts["num_text_bytes"] = reading.num_bytes
            if progress is not None:
                progress({"num_file_bytes": num_file_bytes, **part.counts})
        _, part.counts["num_text_bytes"] = reading.num_bytes
        return part.publish(pipeline, slice_rows=tuple(reading.num_rows), started=started)


def _tokenized(
    plan: JobPlan,
    pipeline: BlockPipeline,
    threads: WorkerThreads,
    bundles: Iterator[list[Block]],
    journal: ShardJournal,
) -> Iterator[list[TokenizedBlock]]:
    """Yields the tokenized blocks of each bundle, in order; reads ahead to keep all threads busy."""
    seconds = plan.settings.record_timeout_seconds
    num_ahead = 0 if journal.is_careful else threads.count + 1
    running: deque[tuple[Future[list[TokenizedBlock]], list[Block]]] = deque()

    def next_result() -> list[TokenizedBlock]:
        future, [first, *_] = running.popleft()
        if not _is_done(future, seconds, lambda: journal.num_noted):
            threads.is_hung = True
            place = "" if first.unit == "file" else f" {first.unit} {first.first_record} or later"
            message = f"`{first.path}`{place}: tokenizing takes longer than {seconds:g} seconds"
            raise StuckRecordError(message, hint="run the same command again: the slow record then counts as bad")
        return future.result()

    for bundle in bundles:
        running.append((threads.submit(partial(journal.work, pipeline.work, bundle)), bundle))
        del bundle  # so that the thread can free the bundle
        if len(running) > num_ahead:
            yield next_result()
    while running:
        yield next_result()


class _Reading:
    def __init__(self) -> None:
        self._reader: SliceReader | None = None
        self._before = (0, 0)
        self.num_rows: list[int] = []

    @property
    def num_bytes(self) -> tuple[int, int]:
        """The number of bytes read from the input files so far, and the number of bytes after decompression."""
        file_bytes, text_bytes = self._before
        if self._reader is None:
            return self._before
        return file_bytes + self._reader.position, text_bytes + self._reader.num_text_bytes

    def blocks(self, shard: PlannedShard, pipeline: BlockPipeline) -> Generator[Block]:
        for slice_ in shard.slices:
            with closing(pipeline.open(slice_)) as reader:
                self._reader = reader
                yield from reader.blocks()
                self._reader = None
                file_bytes, text_bytes = self._before
                self._before = file_bytes + reader.num_bytes, text_bytes + reader.num_text_bytes
                self.num_rows.append(reader.num_rows)
