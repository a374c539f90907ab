"""One shard into its part: blocks of text tokenised by threads, and written in order.

Threads suffice up to some eight: nearly all the time is spent in native code that lets others run, and they share
memory, so that blocks are never copied between processes. More come from more processes, each with shards of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.corpus.plan import CorpusPlan, PlannedShard
from tokenloom.corpus.progress import Counts
from tokenloom.corpus.report import ColumnReport, ShardReport, boot_id
from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.optional import require
from tokenloom.preprocess.blocks import BlockTokeniser, TokenisedBlock
from tokenloom.preprocess.engines import EngineChoice, choose_engine, one_thread_per_call
from tokenloom.preprocess.parsing import Block, parse_block
from tokenloom.preprocess.rejected import RejectedRecords
from tokenloom.preprocess.slices import SliceReader, open_slice
from tokenloom.preprocess.threads import in_order, worker_threads
from tokenloom.storage.atomic import PendingFile, publish_bytes

_LOGGER = logging.getLogger(__name__)
_FIRST_BLOCK_BYTES = 512 << 10
# `tokenizers` needs some 100 ms for a block, so that an interruption need not wait for long.
_BLOCK_BYTES = {"gigatoken": 4 << 20}
_SLOW_BLOCK_BYTES = 256 << 10


def part_pair(part_prefix: str, column: int) -> str:
    """Returns the prefix of the pair of a key, by its number, in a part."""
    return f"{part_prefix}_{column}"


def hashes_path(part_prefix: str) -> str:
    """Returns the path of the hashes of a part's documents: uint64[num_documents, 2]."""
    return f"{part_prefix}.hashes.npy"


class ShardWorker:
    """Tokenises shards, one after the other; its threads and engines live as long as it.

    Args:
        plan: of the job.
        num_workers: threads that tokenise.
    """

    def __init__(self, plan: CorpusPlan, *, num_workers: int) -> None:
        self._plan = plan
        self._num_workers = num_workers
        self._stack = ExitStack()
        self._tokenise: BlockTokeniser | None = None
        self._choice: EngineChoice | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(one_thread_per_call())
            self._executor = stack.enter_context(worker_threads(self._num_workers))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(
        self, shard: PlannedShard, part_prefix: str, *, progress: Callable[[Counts], None] | None = None
    ) -> ShardReport:
        """Writes the part of a shard, and returns its report once that is written too.

        Args:
            shard: to do.
            part_prefix: what the names of its files begin with.
            progress: called often, from the calling thread.

        Raises:
            InputError: the input is damaged, changed, or holds too many bad records.
            TokenizerError: the engine asked for cannot be used, or engines disagree.
            StorageError: reading or writing failed.
        """
        started = time.monotonic()
        settings = self._plan.settings
        first_bytes = min(settings.block_bytes or _FIRST_BLOCK_BYTES, _FIRST_BLOCK_BYTES)
        reading = _Reading(shard, block_bytes=first_bytes)
        with closing(reading.blocks()) as blocks, _Part(self._plan, part_prefix) as part:
            first = next(blocks, None)
            tokenise = self._prepared(first)
            reading.block_bytes = settings.block_bytes or self._best_block_bytes()
            for block in in_order(self._executor, tokenise, first, blocks, num_ahead=self._num_workers + 1):
                part.write(block)
                if progress is not None:
                    progress(part.counts(num_file_bytes=reading.position, num_text_bytes=reading.num_text_bytes))
            return part.publish(self._report(shard, part, reading, seconds=time.monotonic() - started))

    def _prepared(self, block: Block | None) -> BlockTokeniser:
        """Returns what tokenises blocks, its engine chosen when the first of them comes."""
        if self._tokenise is None:
            # Not in this thread, where an interruption is raised: `orjson` and `gigatoken` crash on one as they start.
            self._choice = choice = self._executor.submit(self._choose_engine, block).result()
            self._tokenise = BlockTokeniser(
                self._plan.tokenizer,
                choice,
                keys=self._plan.settings.keys,
                dtype=self._plan.dtype,
                eod=self._plan.eod,
                num_workers=self._num_workers,
            )
        return self._tokenise

    def _choose_engine(self, block: Block | None) -> EngineChoice:
        """Returns the engine, checked on the texts of a block; bad records are left to the run itself."""
        engine = self._plan.settings.engine
        columns = [] if block is None else parse_block(block, self._plan.settings.keys).columns
        choice = choose_engine(engine, self._plan.tokenizer, [text for texts in columns for text in texts.texts])
        if engine == "auto" and choice.is_slow:
            _LOGGER.warning("tokenising with `%s`, the slow engine: %s", choice.name, choice.reason)
        return choice

    def _best_block_bytes(self) -> int:
        assert self._choice is not None
        return _BLOCK_BYTES.get(self._choice.name, _SLOW_BLOCK_BYTES)

    def _report(self, shard: PlannedShard, part: _Part, reading: _Reading, *, seconds: float) -> ShardReport:
        assert self._choice is not None
        return ShardReport(
            key=shard.key,
            slice_rows=tuple(reading.num_rows),
            num_documents=part.num_documents,
            num_blank_lines=part.num_blank_lines,
            num_rejected=part.rejected.count,
            num_doubled=part.num_doubled,
            num_text_bytes=reading.num_text_bytes,
            columns=tuple(column.report() for column in part.columns),
            engine=self._choice.name,
            engine_reason=self._choice.reason,
            seconds=seconds,
            boot_id=boot_id(),
        )


class _Reading:
    """The blocks of a shard's slices, one slice after the other."""

    def __init__(self, shard: PlannedShard, *, block_bytes: int) -> None:
        self._shard = shard
        self._block_bytes = block_bytes
        self._reader: SliceReader | None = None
        self._position = 0  # of the slices before
        self._num_text_bytes = 0
        self.num_rows: list[int] = []

    @property
    def block_bytes(self) -> int:
        """The size of the next blocks; may be changed."""
        return self._block_bytes

    @block_bytes.setter
    def block_bytes(self, value: int) -> None:
        self._block_bytes = value
        if self._reader is not None:
            self._reader.block_bytes = value

    @property
    def position(self) -> int:
        """Bytes of the input files read so far."""
        return self._position + (0 if self._reader is None else self._reader.position)

    @property
    def num_text_bytes(self) -> int:
        """Read so far, after decompression."""
        return self._num_text_bytes + (0 if self._reader is None else self._reader.num_text_bytes)

    def blocks(self) -> Iterator[Block]:
        """Yields all blocks, in order."""
        for slice_ in self._shard.slices:
            with closing(open_slice(slice_, block_bytes=self._block_bytes)) as reader:
                self._reader = reader
                yield from reader.blocks()
                self._reader = None
                self._position += slice_.num_bytes
                self._num_text_bytes += reader.num_text_bytes
                self.num_rows.append(reader.num_rows)


@dataclass(slots=True)
class _Column:
    """The pair of a key as it is written."""

    builder: IndexedDatasetBuilder
    prefix: str
    crc32: Callable[[Any, int], int]
    num_tokens: int = 0
    largest_token: int = -1
    checksum: int = 0

    def write(self, tokens: NDArray[Any], lengths: NDArray[np.int32], document_ends: NDArray[np.int64]) -> None:
        self.builder.append_block(tokens, lengths, document_ends=document_ends)
        self.num_tokens += len(tokens)
        self.checksum = self.crc32(tokens.data, self.checksum)
        if len(tokens):
            self.largest_token = max(self.largest_token, int(tokens.max()))

    def report(self) -> ColumnReport:
        return ColumnReport(
            num_sequences=self.builder.num_sequences,
            num_tokens=self.num_tokens,
            largest_token=self.largest_token,
            bin_crc32=self.checksum,
        )


@dataclass(slots=True)
class _Part:
    """The files of a part. The report comes last, so that a part without one is as if it were not there.

    They are not flushed to the disk one by one: after a loss of power the checksums tell which must be done again.
    """

    plan: CorpusPlan
    prefix: str
    num_documents: int = 0
    num_blank_lines: int = 0
    num_doubled: int = 0
    columns: list[_Column] = field(default_factory=list)
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    rejected: RejectedRecords = field(init=False)

    def __enter__(self) -> Self:
        crc32 = require("isal.isal_zlib", extra="preprocess").crc32
        with ExitStack() as stack:  # undoes what was opened if one fails
            for number in range(len(self.plan.settings.keys)):
                prefix = part_pair(self.prefix, number)
                builder = IndexedDatasetBuilder(bin_path(prefix), dtype=self.plan.dtype, durable=False)
                self.columns.append(_Column(stack.enter_context(builder), prefix, crc32))
            self.rejected = RejectedRecords(self.prefix, budget=self.plan.settings.bad_records)
            stack.callback(self.rejected.close)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def write(self, block: TokenisedBlock) -> None:
        """Appends the documents of a block, and sets its bad records aside."""
        for column, made in zip(self.columns, block.columns, strict=True):
            column.write(made.tokens, made.lengths, made.document_ends)
        if block.hashes is not None:
            self.hashes.append(block.hashes)
        self.num_documents += block.num_documents
        self.num_blank_lines += block.num_blank_lines
        self.num_doubled += block.num_doubled
        for record in block.bad_records:
            self.rejected.add(record)

    def counts(self, *, num_file_bytes: int, num_text_bytes: int) -> Counts:
        """Returns what was done so far."""
        return Counts(
            num_file_bytes=num_file_bytes,
            num_text_bytes=num_text_bytes,
            num_documents=self.num_documents,
            num_tokens=sum(column.num_tokens for column in self.columns),
            num_rejected=self.rejected.count,
        )

    def publish(self, report: ShardReport) -> ShardReport:
        """Makes the files appear, the report last, and returns it."""
        for column in self.columns:
            column.builder.finalize(idx_path(column.prefix))
        if self.plan.settings.hashes_documents:
            with PendingFile(hashes_path(self.prefix), durable=False) as file:
                np.save(file.stream, np.concatenate([np.empty((0, 2), dtype=np.uint64), *self.hashes]))
        self.rejected.publish()
        publish_bytes(f"{self.prefix}.json", report.to_json())
        return report
