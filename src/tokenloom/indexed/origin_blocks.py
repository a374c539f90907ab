"""Runs of documents that come from consecutive records of one file, and how they are packed in blocks of 256.

A block is read without those before it; FORMAT.md has the bytes. A column of a block is its smallest value, in the
directory, and what each run has beyond it, in as few bytes as the largest needs; a column of equal values takes none.
Instead of the first record of a run, the records that were left out before it are stored, which are few. With every
second record left out at random, a document takes a byte, with every hundredth a thirtieth of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.kernels import Watch, crc32
from tokenloom.numbers import check_count
from tokenloom.storage.json_files import MAY_BE_MISSING

UNITS = ("line", "row", "file", "pair")
"""What a record of a file is: a line of text, a row of a table, the whole file, or of a folder a text and its image."""

MOST_RECORDS = 1 << 48
"""Numbers of records and of documents are below, so that sums over a block fit 64 bits."""

_DOCUMENTS_AT_ONCE = 1 << 20

BLOCK_RUNS = 256
WIDTHS = (0, 1, 2, 4, 8)
"""Bytes that a value may take."""

ENTRY = np.dtype(
    [
        ("first_document", "<i8"),
        ("record_before", "<i8"),
        ("base_gap", "<i8"),
        ("base_length", "<i8"),
        ("min_record", "<i8"),
        ("max_record", "<i8"),
        ("base_file", "<i4"),
        ("max_file", "<i4"),
        ("crc32", "<u4"),
        ("widths", "u1", 3),
        ("reserved", "u1"),
    ]
)
"""What the directory says of a block."""

_COLUMNS = 3  # file, gap, length
_LARGEST = np.array([0, 2**8 - 1, 2**16 - 1, 2**32 - 1], dtype=np.int64)
_RUNS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginFile:
    """An input file that documents came from.

    Attributes:
        path: its path or address, as it was named.
        num_bytes: its size.
        version: what changes when the file does, see `InputRecord`; None where it is not known.
        unit: what its records are, one of `UNITS`.
        num_records: records of the file, those that gave no document included; None where it is not known.
    """

    path: str
    num_bytes: int
    version: str | None = field(default=None, metadata=MAY_BE_MISSING)
    unit: str
    num_records: int | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_count("num_bytes of the file", self.num_bytes)
        if self.num_records is not None:
            check_count("num_records of the file", self.num_records)
        if self.unit not in UNITS:
            message = f"expected a unit out of {', '.join(UNITS)}, found {self.unit!r}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OriginRuns:
    """Consecutive documents, as runs of those that come from consecutive records of one file.

    Attributes:
        file_numbers: int32[num_runs], number of the file; -1 for documents whose origin is not known.
        first_records: int64[num_runs], record of the first document, from 1; 0 where it is not known.
        num_documents: int64[num_runs], documents of the run.
    """

    file_numbers: NDArray[np.int32]
    first_records: NDArray[np.int64]
    num_documents: NDArray[np.int64]

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.num_documents)

    def __getitem__(self, chosen: slice | NDArray[np.integer[Any]]) -> OriginRuns:
        """Returns some of the runs: a view for a slice, a copy for numbers of runs."""
        return OriginRuns(
            file_numbers=self.file_numbers[chosen],
            first_records=self.first_records[chosen],
            num_documents=self.num_documents[chosen],
        )

    @staticmethod
    def unknown(num_documents: int) -> OriginRuns:
        """Returns the runs of documents whose origin is not known: one, or none of no documents."""
        return OriginRuns.of([(-1, 0, num_documents)] if num_documents else [])

    @staticmethod
    def of(runs: Sequence[tuple[int, int, int]]) -> OriginRuns:
        """Returns runs from a file number, a first record and a number of documents each.

        Example:
            >>> OriginRuns.of([(0, 1, 3), (1, 7, 1)]).first_records.tolist()
            [1, 7]
        """
        columns = np.array(runs, dtype=np.int64).reshape(-1, 3)
        return OriginRuns(
            file_numbers=columns[:, 0].astype(np.int32),
            first_records=np.ascontiguousarray(columns[:, 1]),
            num_documents=np.ascontiguousarray(columns[:, 2]),
        )

    @staticmethod
    def concatenated(parts: Sequence[OriginRuns]) -> OriginRuns:
        """Returns the runs of all parts, in order, none of them joined."""
        return OriginRuns(
            file_numbers=np.concatenate([np.empty(0, np.int32), *(part.file_numbers for part in parts)]),
            first_records=np.concatenate([np.empty(0, np.int64), *(part.first_records for part in parts)]),
            num_documents=np.concatenate([np.empty(0, np.int64), *(part.num_documents for part in parts)]),
        )

    def joined(self) -> OriginRuns:
        """Returns the same documents in the fewest runs, none of them empty."""
        held = self if self.num_documents.all() else self[np.flatnonzero(self.num_documents)]
        files, firsts, counts = held.file_numbers, held.first_records, held.num_documents
        goes_on = (files[1:] == files[:-1]) & ((files[1:] < 0) | (firsts[1:] == firsts[:-1] + counts[:-1]))
        if not goes_on.any():
            return held
        starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        return OriginRuns(
            file_numbers=files[starts],
            first_records=firsts[starts],
            num_documents=np.add.reduceat(counts, starts),
        )

    def renumbered(self, numbers: NDArray[np.int32]) -> OriginRuns:
        """Returns the same runs with other numbers of files.

        Args:
            numbers: int32[num_files], the new number of each file.
        """
        known = self.file_numbers >= 0
        files = np.full(len(self), -1, dtype=np.int32)
        files[known] = numbers[self.file_numbers[known]]
        return OriginRuns(file_numbers=files, first_records=self.first_records, num_documents=self.num_documents)

    def pieces(self, num_documents: int = _DOCUMENTS_AT_ONCE) -> Iterator[OriginRuns]:
        """Yields the same in pieces of so many documents, the last one of fewer; runs are cut where need be."""
        total = int(self.num_documents.sum())
        for start in range(0, total, num_documents):
            yield self.clipped(start, min(start + num_documents, total))

    def clipped(self, start: int, stop: int) -> OriginRuns:
        """Returns the runs of documents [start, stop), counted from the first of these; O(runs)."""
        if start >= stop:
            return self[:0]
        ends = np.cumsum(self.num_documents)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        chosen = self[first : last + 1]
        firsts, counts = chosen.first_records.copy(), chosen.num_documents.copy()
        before = start - int(ends[first] - counts[0])
        firsts[0] += before if chosen.file_numbers[0] >= 0 else 0
        counts[0] -= before
        counts[-1] -= int(ends[last]) - stop
        return OriginRuns(file_numbers=chosen.file_numbers, first_records=firsts, num_documents=counts)

    def select(self, mask: NDArray[np.bool_]) -> OriginRuns:
        """Returns the runs of some of the documents; those around a document that is left out are not joined.

        Args:
            mask: bool[documents of all runs], whether each is kept.
        """
        held = np.flatnonzero(self.num_documents)  # an empty run begins where another one does
        bounds = (np.cumsum(self.num_documents) - self.num_documents)[held]
        is_edge = np.concatenate([[False], mask[1:] != mask[:-1]])[: len(mask)]
        is_edge[bounds] = True
        edges = np.flatnonzero(is_edge)
        is_taken = mask[edges]
        begins, ends = edges[is_taken], np.append(edges[1:], len(mask))[is_taken]
        numbers = np.searchsorted(bounds, begins, side="right") - 1
        runs = held[numbers]
        files = self.file_numbers[runs]
        return OriginRuns(
            file_numbers=files,
            first_records=self.first_records[runs] + np.where(files < 0, 0, begins - bounds[numbers]),
            num_documents=ends - begins,
        )


class BlockEncoder:
    """Packs runs as they come; memory is bounded, but for 64 bytes per block.

    Args:
        write: takes the bytes of blocks, in order.
    """

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        self._write = write
        self._pending: list[OriginRuns] = []
        self._num_pending = 0
        self._entries: list[NDArray[Any]] = []
        self._record_before = 1
        self.num_documents: int = 0
        self.num_runs: int = 0

    def append(self, runs: OriginRuns) -> None:
        """Appends documents; runs that go on from those before are joined with them."""
        self._pending.append(runs)
        self._num_pending += len(runs)
        if self._num_pending >= _RUNS_AT_ONCE:
            self._flush(is_end=False)

    def finish(self) -> NDArray[Any]:
        """Writes what is left, and returns the directory: ENTRY[num_blocks]."""
        self._flush(is_end=True)
        return np.concatenate([np.empty(0, dtype=ENTRY), *self._entries])

    def _flush(self, *, is_end: bool) -> None:
        runs = OriginRuns.concatenated(self._pending).joined()
        count = len(runs) if is_end else max(0, len(runs) - 1) // BLOCK_RUNS * BLOCK_RUNS  # the last may go on
        whole = count // BLOCK_RUNS * BLOCK_RUNS
        for begin, end in ((0, whole), (whole, count)):
            if begin < end:
                self._encode(runs[begin:end], min(BLOCK_RUNS, end - begin))
        self._pending = [runs[count:]]
        self._num_pending = len(self._pending[0])

    def _encode(self, runs: OriginRuns, num_columns: int) -> None:
        """Writes runs as blocks of so many each."""
        known = runs.file_numbers >= 0
        firsts = np.where(known, runs.first_records, 0)
        ends = firsts + runs.num_documents
        before = np.concatenate([[self._record_before], ends[:-1]])
        stops = np.cumsum(runs.num_documents) + self.num_documents
        shape = (-1, num_columns)
        gaps, lengths = (firsts - before).reshape(shape), runs.num_documents.reshape(shape)
        files = runs.file_numbers.astype(np.int64).reshape(shape)
        entries = np.zeros(len(gaps), dtype=ENTRY)
        entries["first_document"] = (stops - runs.num_documents).reshape(shape)[:, 0]
        entries["record_before"] = before.reshape(shape)[:, 0]
        entries["min_record"] = np.where(known, firsts, MOST_RECORDS).reshape(shape).min(axis=1)
        entries["max_record"] = np.where(known, ends - 1, 0).reshape(shape).max(axis=1)
        entries["min_record"][entries["max_record"] == 0] = 0
        entries["max_file"] = files.max(axis=1)
        columns = []
        for number, (name, values) in enumerate((("base_file", files), ("base_gap", gaps), ("base_length", lengths))):
            entries[name] = base = values.min(axis=1)
            columns.append(values - base[:, None])
            codes = np.searchsorted(_LARGEST, columns[-1].max(axis=1))
            entries["widths"][:, number] = np.array(WIDTHS, dtype=np.uint8)[codes]
        changes = np.flatnonzero((entries["widths"][1:] != entries["widths"][:-1]).any(axis=1)) + 1
        for begin, end in zip([0, *changes.tolist()], [*changes.tolist(), len(entries)], strict=True):
            widths = entries["widths"][begin].tolist()
            packed = [
                column[begin:end].astype(f"<u{width}").view(np.uint8)
                for column, width in zip(columns, widths, strict=True)
                if width
            ]
            rows = np.concatenate([np.empty((end - begin, 0), dtype=np.uint8), *packed], axis=1)
            entries["crc32"][begin:end] = [crc32(row) for row in rows] if packed else 0
            self._write(rows.data.cast("B") if rows.size else memoryview(b""))
        self._entries.append(entries)
        self._record_before = int(ends[-1])
        self.num_documents = int(stops[-1])
        self.num_runs += len(runs)


class Blocks:
    """Packed runs, unpacked where they are asked for. Safe from several threads.

    Args:
        directory: ENTRY[num_blocks].
        data: uint8[…], the blocks, in order.
        num_documents, num_runs, num_files: counts of all of it.
        name: the file, for errors.

    Raises:
        DatasetFormatError: the directory contradicts itself or the counts.
    """

    def __init__(
        self,
        directory: NDArray[Any],
        data: NDArray[np.uint8],
        *,
        num_documents: int,
        num_runs: int,
        num_files: int,
        name: str,
    ) -> None:
        self.num_documents = num_documents
        self.num_runs = num_runs
        self.directory = directory
        self._data = data
        self._num_files = num_files
        self._name = name
        self._first_documents = np.append(directory["first_document"], num_documents)
        self._check_directory()
        counts = np.full(len(directory), BLOCK_RUNS, dtype=np.int64)
        counts[-1:] = num_runs - BLOCK_RUNS * (len(directory) - 1)
        self._counts = counts
        sizes = counts * directory["widths"].sum(axis=1, dtype=np.int64)
        self._offsets = np.cumsum(sizes) - sizes
        if (expected := int(sizes.sum())) != len(data):
            raise self.damaged(expected=f"blocks of {expected} bytes", found=len(data))
        self._is_checked = np.zeros(len(directory), dtype=np.bool_)
        self._watch = Watch([data])

    def damaged(self, *, expected: str, found: object) -> DatasetFormatError:
        """Returns the error for what is not as it should be."""
        message = f"`{self._name}`: expected {expected}, found {found}"
        return DatasetFormatError(message, hint="the file is damaged; write the pair again, or remove it to do without")

    def _check_directory(self) -> None:
        entries, firsts = self.directory, self._first_documents
        if firsts[0] != 0 or (np.diff(firsts) <= 0).any():
            raise self.damaged(expected=f"blocks of documents from 0 to {self.num_documents}, in order", found="others")
        for name in ("record_before", "base_gap", "base_length", "min_record", "max_record"):
            low = -MOST_RECORDS if name == "base_gap" else 0
            values = entries[name]
            if ((values < low) | (values > MOST_RECORDS)).any():
                raise self.damaged(
                    expected=f"{name} from {low} to {MOST_RECORDS}", found=f"{values.min()} to {values.max()}"
                )
        if ((entries["base_file"] < -1) | (entries["max_file"] >= self._num_files)).any():
            raise self.damaged(expected=f"files from -1 to {self._num_files - 1}", found="others")
        if not np.isin(entries["widths"], WIDTHS).all():
            raise self.damaged(expected=f"columns of {WIDTHS} bytes", found="others")

    def blocks_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the block of each document."""
        return np.searchsorted(self.directory["first_document"], documents, side="right") - 1

    def unpack(self, numbers: NDArray[np.int64]) -> tuple[OriginRuns, NDArray[np.int64]]:
        """Returns the runs of some blocks, and the first document of each.

        Args:
            numbers: int64[num_chosen], rising; some thousands at once.

        Raises:
            DatasetFormatError: they are damaged.
            ChangedFileError: the file was truncated or overwritten meanwhile.
        """
        entries, counts = self.directory[numbers], self._counts[numbers]
        columns = [np.empty((len(numbers), BLOCK_RUNS), dtype=np.int64) for _ in range(_COLUMNS)]
        kinds = entries["widths"] @ np.array([1, 16, 256]) + 4096 * (counts < BLOCK_RUNS)
        for kind in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            self._unpack_alike(numbers[rows], rows, int(counts[rows[0]]), columns)
        self._watch.check()
        files, gaps, lengths = columns
        files += entries["base_file"][:, None]
        gaps += entries["base_gap"][:, None]
        lengths += entries["base_length"][:, None]
        is_full = bool((counts == BLOCK_RUNS).all())
        held = np.broadcast_to(np.True_, lengths.shape) if is_full else np.arange(BLOCK_RUNS) < counts[:, None]
        if not is_full:
            lengths[~held] = 0
        ends = np.cumsum(lengths, axis=1)
        firsts = np.cumsum(gaps, axis=1)
        firsts += ends
        firsts += entries["record_before"][:, None] - lengths
        starts = ends
        starts += entries["first_document"][:, None] - lengths
        if not self._is_checked[numbers].all():
            self._check(numbers, held, files, firsts, lengths)
            self._is_checked[numbers] = True
        files, firsts, lengths, starts = (
            each.ravel() if is_full else each[held] for each in (files, firsts, lengths, starts)
        )
        runs = OriginRuns(file_numbers=files.astype(np.int32), first_records=firsts, num_documents=lengths)
        return runs, starts

    def _unpack_alike(
        self, numbers: NDArray[np.int64], rows: NDArray[np.int64], count: int, columns: list[NDArray[np.int64]]
    ) -> None:
        """Puts what blocks of the same widths and number of runs hold into rows of the columns."""
        widths = self.directory["widths"][numbers[0]].tolist()
        size = count * sum(widths)
        if size:
            windows = np.lib.stride_tricks.sliding_window_view(self._data, size)
            packed = windows[self._offsets[numbers]]
            self._check_bytes(numbers, packed)
        at = 0
        for column, width in zip(columns, widths, strict=True):
            values: Any = 0
            if width:
                values = np.ascontiguousarray(packed[:, at : at + count * width]).view(f"<u{width}")
                if width == 8 and (values > 2 * MOST_RECORDS).any():
                    raise self.damaged(expected=f"numbers up to {2 * MOST_RECORDS}", found=f"{values.max()}")
                at += count * width
            column[rows, :count] = values
            column[rows, count:] = 0

    def _check_bytes(self, numbers: NDArray[np.int64], packed: NDArray[np.uint8]) -> None:
        """Compares blocks with their checksums, once."""
        for row in np.flatnonzero(~self._is_checked[numbers]).tolist():
            expected = int(self.directory["crc32"][numbers[row]])
            if (found := crc32(packed[row])) != expected:
                raise self.damaged(expected=f"CRC-32 {expected:08x} of block {numbers[row]}", found=f"{found:08x}")

    def _check(
        self,
        numbers: NDArray[np.int64],
        held: NDArray[np.bool_],
        files: NDArray[np.int64],
        firsts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Checks that blocks hold what the directory says, so that nothing behind them need be looked at again."""
        entries = self.directory[numbers]
        expected = self._first_documents[numbers + 1] - entries["first_document"]
        is_known = held & (files >= 0)
        low, high = entries["min_record"][:, None], entries["max_record"][:, None]
        is_wrong = held & ((lengths < 1) | (files > entries["max_file"][:, None]))
        is_wrong |= is_known & ((firsts < np.maximum(low, 1)) | (firsts + lengths - 1 > high))
        is_wrong[:, 0] |= lengths.sum(axis=1) != expected
        if is_wrong.any():
            wrong = numbers[np.flatnonzero(is_wrong.any(axis=1))[0]]
            raise self.damaged(expected=f"the documents of block {wrong} as the directory has them", found="others")
