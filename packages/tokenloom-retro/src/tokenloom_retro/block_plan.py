"""A task of a retrieval database as blocks: rows `start` to `stop` into arrays, for `jobs`.

Each block is a function of its rows and of what the task says decides them; so a task may be killed anywhere, goes on
where it was, and is shared by processes, machines and clusters like a corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError
from tokenloom.machine import boot_id
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.typed_json import Crc32, from_versioned, versioned_members_of
from tokenloom_retro.block_files import planned_blocks
from tokenloom_retro.hdf5 import write_arrays
from tokenloom_retro.output import crc32_of

Arrays = Mapping[str, NDArray[Any]]
AssembledT = TypeVar("AssembledT")

_VERSION = 1
_THREADS_PER_PROCESS = 16
"""Each process holds the whole index in memory, and libraries for vectors have threads of their own."""


class BlockMaker(Protocol):
    """Makes blocks in one process; what it has opened lives as long as its `with` block."""

    def __enter__(self) -> Self:
        """Returns the maker, ready."""

    def __exit__(self, *_: object) -> None:
        """Lets go of what it holds."""

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        """Returns the arrays of rows [start, stop): the same whoever makes them, and whenever.

        Args:
            start, stop: the rows.
            advance: called with the number of further rows that are made, from the calling thread.

        Raises:
            TokenloomError: they cannot be made.
        """


class BlockTask(Protocol):
    """Rows that are made block by block. Picklable."""

    @property
    def name(self) -> str:
        """What is made, for people: "chunks of books"."""

    @property
    def unit(self) -> str:
        """What a row is, in the plural: "documents"."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    @property
    def block_size(self) -> int:
        """Rows of a block; the last one may have fewer."""

    def identity(self) -> dict[str, Any]:
        """Returns all that decides what comes out, as values for JSON."""

    def maker(self, num_workers: int) -> BlockMaker:
        """Returns what makes blocks in this process, with so many threads."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a task.

    Attributes:
        number: number from 0.
        start, stop: its rows.
        key: a hash of its rows and of what decides them.
    """

    number: int
    start: int
    stop: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """What came out of a block: written last, so that a block with a report is whole.

    Attributes:
        key: key of the block.
        num_bytes, crc32: size and checksum of its file.
        arrays_crc32: checksum of its arrays, whatever the file is like.
        seconds: the block took.
        boot_id: boot id of the machine that made it.
    """

    key: str
    num_bytes: int
    crc32: Crc32
    arrays_crc32: Crc32
    seconds: float
    boot_id: str

    def to_json(self) -> bytes:
        """Returns the report as a file holds it."""
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> Self:
        """Returns the report in a file.

        Raises:
            StorageError: it is not one.
        """
        try:
            return from_versioned(cls, parse_json(data), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a block: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove it; the block is then made again") from error


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How far a block is.

    Attributes:
        num_rows: rows that are made.
    """

    num_rows: int = 0


@dataclass(frozen=True)
class BlockPlan:
    """The blocks of a task, for `jobs`.

    Attributes:
        task: what is made.
    """

    task: BlockTask
    worker_timeout_seconds: float = 600.0
    reads_streams: bool = False

    @cached_property
    def shards(self) -> tuple[Block, ...]:
        """All blocks, in order."""
        identity = self.task.identity()
        return tuple(
            Block(number, planned.start, planned.stop, _hash([_VERSION, identity, planned.start, planned.stop]))
            for number, planned in enumerate(planned_blocks("", self.task.num_rows, self.task.block_size))
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides what the task makes."""
        return _hash([self.description(), [block.key for block in self.shards]])

    def description(self) -> dict[str, Any]:
        """Returns what processes that share the task must agree on."""
        return {"version": _VERSION, "task": self.task.name, **self.task.identity()}

    def input_keys(self) -> list[str]:
        """Returns nothing: all inputs are part of what decides the blocks."""
        return []

    def read_report(self, data: bytes, *, path: str) -> BlockReport:
        """Returns the report in a file.

        Raises:
            StorageError: it is not one.
        """
        report = BlockReport.from_json(data, path=path)
        if os.path.basename(path) != f"{report.key}.json":
            message = f"`{path}` is the report of another block, {report.key}"
            raise StorageError(message, hint="remove it; the block is then made again")
        return report


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What processes make blocks with; see `jobs.protocols.SharedWork`.

    Attributes:
        plan: the blocks.
    """

    plan: BlockPlan

    def worker(self, num_workers: int) -> BlockWorker:
        """Returns what makes blocks in this process, with so many threads."""
        return BlockWorker(self.plan.task.maker(num_workers))

    def counts(self, **numbers: int) -> RowCounts:
        """Returns counts of these members; of nothing without."""
        return RowCounts(**numbers)

    def counts_of(self, report: BlockReport, shard: Block) -> RowCounts:
        """Returns what a block that is made comes to."""
        return RowCounts(shard.stop - shard.start)

    def whereabouts(self, shard: Block) -> str:
        """Returns the rows of a block, in words."""
        return f"{self.plan.task.unit} {shard.start:,} to {shard.stop:,} of {self.plan.task.name}"

    def records_at(self, journal_path: str) -> str:
        """Returns nothing: blocks keep no journal."""
        return ""

    def blame(self, journal_path: str, reason: str) -> str | None:
        """Returns None: no row is ever left out because a process died."""
        return None


class BlockWorker:
    """Makes blocks into files of a job's folder.

    Args:
        maker: makes the arrays.
    """

    def __init__(self, maker: BlockMaker) -> None:
        self._maker = maker

    def __enter__(self) -> Self:
        self._maker.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._maker.__exit__(*error)

    def run(
        self, shard: Block, part_prefix: str, *, progress: Callable[[RowCounts], None] | None = None
    ) -> BlockReport:
        """Writes the arrays of a block, then its report, and returns that.

        Raises:
            TokenloomError: the block cannot be made or written.
        """
        started = time.monotonic()
        num_made = 0

        def advance(count: int) -> None:
            nonlocal num_made
            num_made += count
            if progress is not None:
                progress(RowCounts(num_made))

        arrays = self._maker.make(shard.start, shard.stop, advance)
        path = part_path(part_prefix)
        write_arrays(path, arrays, durable=False)
        report = BlockReport(
            key=shard.key,
            num_bytes=os.path.getsize(path),
            crc32=crc32_of(path),
            arrays_crc32=crc32_of_arrays(arrays),
            seconds=time.monotonic() - started,
            boot_id=boot_id(),
        )
        publish_bytes(f"{part_prefix}.json", report.to_json())
        return report


def crc32_of_arrays(arrays: Arrays) -> int:
    """Returns a checksum of arrays: of names, dtypes, shapes and bytes."""
    crc = 0
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape} ".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", crc)
    return crc


def part_path(part_prefix: str) -> str:
    """Returns the path of the file of a block in the job's folder."""
    return f"{part_prefix}_0.hdf5"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
