"""Writing an `.idx` file in one pass over its rows, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError
from tokenloom.indexed.layout import Header
from tokenloom.kernels import RecordBuilder
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.locks import write_at

_ROWS_PER_WRITE = 1 << 20


class IndexWriter:
    """Writes the arrays of an index side by side: each block of rows goes to its place in all of them.

    Attributes:
        num_rows: sequences written so far.
        pointer: where the next sequence begins, in bytes; may be set to somewhere else than where the last one ended.
    """

    def __init__(self, file: PendingFile | PendingObject, header: Header, *, multimodal: bool) -> None:
        self._file = file
        self._header = header
        self._multimodal = multimodal
        self.num_rows: int = 0
        self._num_boundaries = 0
        self.pointer: int = 0
        file.write(header.pack())
        file.sync()
        self.add_boundaries(np.zeros(1, dtype=np.int64))

    def add_rows(self, lengths: NDArray[np.int32], modes: NDArray[np.int8] | None = None) -> None:
        """Appends sequences that lie back to back.

        Args:
            lengths: int32[count], tokens of each.
            modes: int8[count], in a multimodal dataset.
        """
        if not len(lengths):
            return
        header, row = self._header, self.num_rows
        ends = np.cumsum(lengths, dtype=np.int64) * header.dtype.itemsize + self.pointer
        pointers = np.concatenate([np.array([self.pointer], dtype=np.int64), ends[:-1]])
        self._put(header.lengths_offset + 4 * row, lengths)
        self._put(header.pointers_offset + 8 * row, pointers)
        if self._multimodal:
            assert modes is not None
            self._put(header.modes_offset + row, modes)
        self.num_rows += len(lengths)
        self.pointer = int(ends[-1])

    def add_boundaries(self, ends: NDArray[np.int64]) -> None:
        """Appends the ends of documents: int64[count], the sequences before each; the first boundary, 0, is there."""
        self._put(self._header.boundaries_offset + 8 * self._num_boundaries, ends)
        self._num_boundaries += len(ends)

    def finish(self) -> None:
        """Makes the bytes durable, under the temporary name."""
        expected = self._header.num_sequences, self._header.num_boundaries
        if (found := (self.num_rows, self._num_boundaries)) != expected:
            message = f"`{self._file.path}`: expected {expected} sequences and boundaries, found {found}"
            raise StorageError(message, hint="an input changed while it was read")
        self._file.sync()

    def _put(self, offset: int, values: NDArray[Any]) -> None:
        if len(values):
            with storage_errors("write", self._file.path):
                write_at(self._file.stream.fileno(), np.ascontiguousarray(values).view(np.uint8).data, offset)


def write_records(
    records: RecordBuilder, file: PendingFile | PendingObject, *, dtype_code: int, multimodal: bool
) -> None:
    """Writes the index of all sequences that a builder took note of."""
    header = Header(
        dtype_code=dtype_code, num_sequences=records.num_sequences, num_boundaries=records.num_document_boundaries
    )
    rows = IndexWriter(file, header, multimodal=multimodal)
    for begin, lengths in _blocks(records.copy_lengths, header.num_sequences, np.int32):
        modes = None
        if multimodal:
            modes = np.empty(len(lengths), dtype=np.int8)
            records.copy_modes(begin, modes)
        rows.add_rows(lengths, modes)
    for begin, ends in _blocks(records.copy_document_ends, header.num_boundaries, np.int64):
        rows.add_boundaries(ends[1:] if begin == 0 else ends)  # the first, 0, is there
    rows.finish()


def _blocks(
    copy: Callable[[int, NDArray[Any]], None], count: int, dtype: type[Any]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields the rows of a record array in bounded pieces, each with its first row."""
    for begin in range(0, count, _ROWS_PER_WRITE):
        block = np.empty(min(_ROWS_PER_WRITE, count - begin), dtype=dtype)
        copy(begin, block)
        yield begin, block
