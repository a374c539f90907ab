"""Writing an `.idx` file in one pass over its rows, whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError
from tokenloom.indexed.layout import Header
from tokenloom.storage.atomic import PendingFile, storage_errors, write_at


class IndexWriter:
    """Writes the arrays of an index side by side: each block of rows goes to its place in all of them.

    Attributes:
        num_rows: sequences written so far.
        pointer: where the next sequence begins, in bytes; may be set to somewhere else than where the last one ended.
    """

    def __init__(self, file: PendingFile, header: Header, *, multimodal: bool) -> None:
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
