"""Runs of origins in blocks of 256, packed so that a block is read without those before it. FORMAT.md has the bytes.

A column of a block is its smallest value, in the directory, and what each run has beyond it, in as few bytes as the
largest needs; a column of equal values takes none. Instead of the first record of a run, the records that were left out
before it are stored, which are few. With every second record left out at random, a document takes a byte, with every
hundredth a thirtieth of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origin_runs import MOST_RECORDS, OriginRuns
from tokenloom.kernels import Watch, crc32

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
                self._encode(_part(runs, begin, end), min(BLOCK_RUNS, end - begin))
        self._pending = [_part(runs, count, len(runs))]
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


class PackedRuns:
    """Runs that are kept packed, in memory: about a byte for a document with every second record left out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._encoder = BlockEncoder(self._data.extend)
        self.append: Callable[[OriginRuns], None] = self._encoder.append

    def blocks(self, *, num_files: int) -> Blocks:
        """Returns all of them; nothing can be appended any more."""
        return Blocks(
            self._encoder.finish(),
            np.frombuffer(self._data, dtype=np.uint8),
            num_documents=self._encoder.num_documents,
            num_runs=self._encoder.num_runs,
            num_files=num_files,
            name="origins in memory",
        )


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


def _part(runs: OriginRuns, begin: int, end: int) -> OriginRuns:
    return OriginRuns(
        file_numbers=runs.file_numbers[begin:end],
        first_records=runs.first_records[begin:end],
        num_documents=runs.num_documents[begin:end],
    )
