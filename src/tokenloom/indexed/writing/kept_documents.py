"""Some documents of a dataset, in their order: their rows and their bytes, in bounded memory."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.local import Bytes
from tokenloom.storage.versions import FileVersion

_BLOCK_ROWS = 1 << 20
_LONG_RUN_BYTES = 256 << 10
"""From here on a run is copied by the kernel; shorter ones are gathered: a call for each would cost more than it."""
_GATHERED_BYTES = 16 << 20
_READ_BYTES = 64 << 20  # of an object: read as several ranges at once


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a local file that are copied without being read: [offset, offset + length); of this version of it."""

    path: str
    offset: int
    length: int
    version: FileVersion | None


Piece = FilePiece | Bytes
"""Where bytes are, or the bytes."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ConcatenatedPart:
    """A dataset, or some documents of it, as a part of something larger. A dataset may be in several parts.

    Attributes:
        documents: those that belong to the part; None for all.
        kept_documents: bool[num_documents of the dataset], false for those that are left out; None keeps all.
    """

    prefix: str
    documents: range | None = None
    kept_documents: NDArray[np.bool_] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole dataset."""
        return self.documents is None and self.kept_documents is None


class Selection:
    """The documents of a part, read block by block."""

    def __init__(self, dataset: IndexedDataset, part: ConcatenatedPart) -> None:
        self.dataset = dataset
        count = dataset.num_documents
        self._documents = range(count) if part.documents is None else part.documents
        if self._documents.step != 1 or not 0 <= self._documents.start <= self._documents.stop <= count:
            message = f"`{part.prefix}`: expected documents from 0 to {count}, found {self._documents}"
            raise ConfigError(message)
        self._kept = part.kept_documents
        if (kept := self._kept) is not None and (kept.dtype != np.bool_ or kept.shape != (count,)):
            found = f"{kept.dtype}{list(kept.shape)}"
            message = f"`{part.prefix}`: expected bool[{count}], a value per document, found {found}"
            raise ConfigError(message)

    def count(self) -> tuple[int, int, int]:
        """Returns how many documents, sequences and tokens there are; one pass over the rows if some are left out."""
        if self._kept is None:
            first, last = self.dataset.document_indices[[self._documents.start, self._documents.stop]].tolist()
            return len(self._documents), last - first, self.dataset.count_tokens(range(first, last))
        totals = np.zeros(3, dtype=np.int64)
        for block in self.blocks():
            totals += (block.num_documents, block.counts.sum(), block.lengths.sum(dtype=np.int64))
        documents, sequences, tokens = totals.tolist()
        return documents, sequences, tokens

    def blocks(self) -> Iterator[Block]:
        """Yields the documents in blocks of about a million sequences."""
        boundaries, stop = self.dataset.document_indices, self._documents.stop
        first = self._documents.start
        while first < stop:
            limit = int(boundaries[first]) + _BLOCK_ROWS
            last = bisect.bisect_right(boundaries, limit, first + 1, min(stop, first + _BLOCK_ROWS) + 1) - 1
            last = max(last, first + 1)
            kept = np.ones(last - first, dtype=np.bool_) if self._kept is None else self._kept[first:last]
            yield Block(self.dataset, range(first, last), kept)
            first = last


class Block:
    """Consecutive documents, some of them left out.

    Attributes:
        documents, rows: all documents of the block, the dropped ones included, and their sequences.
        kept_documents, kept_rows: bool[documents], bool[rows], whether each is kept.
        num_documents: how many are.
        counts: int64[num_documents], sequences of each.
    """

    def __init__(self, dataset: IndexedDataset, documents: range, kept: NDArray[np.bool_]) -> None:
        self._dataset = dataset
        boundaries = np.array(dataset.document_indices[documents.start : documents.stop + 1])
        self.documents: slice = slice(documents.start, documents.stop)
        self.rows: slice = slice(int(boundaries[0]), int(boundaries[-1]))
        self.kept_documents: NDArray[np.bool_] = kept
        self.kept_rows: NDArray[np.bool_] = np.repeat(kept, np.diff(boundaries))
        self.counts: NDArray[np.int64] = np.diff(boundaries)[kept]
        self.num_documents: int = len(self.counts)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32[kept sequences], tokens of each."""
        return self._dataset.sequence_lengths[self.rows][self.kept_rows]

    @property
    def modes(self) -> NDArray[np.int8] | None:
        """int8[kept sequences] of a multimodal dataset."""
        modes = self._dataset.index.sequence_modes
        return None if modes is None else modes[self.rows][self.kept_rows]

    def pieces(self) -> Iterator[Piece]:
        """Yields the bytes of the kept sequences, in order: long runs as they lie in files, short ones gathered."""
        starts, stops, sizes = self._runs()
        position, long_runs = 0, np.flatnonzero(sizes >= _LONG_RUN_BYTES).tolist()
        for run in [*long_runs, len(sizes)]:
            yield from self._gathered(starts[position:run], stops[position:run], sizes[position:run])
            if run < len(sizes):
                begin = int(self._dataset.index.sequence_pointers[starts[run]])
                yield from byte_pieces(self._dataset, begin, int(sizes[run]))
            position = run + 1

    def _runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the runs of kept rows: first row, one past the last, and bytes from the first to the last."""
        edges = np.flatnonzero(np.diff(self.kept_rows.view(np.int8), prepend=0, append=0)) + self.rows.start
        starts, stops = edges[::2], edges[1::2]
        index, itemsize = self._dataset.index, self._dataset.dtype.itemsize
        ends = index.sequence_pointers[stops - 1] + index.sequence_lengths[stops - 1].astype(np.int64) * itemsize
        return starts, stops, ends - index.sequence_pointers[starts]

    def _gathered(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Iterator[Piece]:
        """Yields the bytes of short runs, many at a time."""
        sums, first = np.cumsum(sizes), 0
        while first < len(starts):
            before = int(sums[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(sums, before + _GATHERED_BYTES, side="right")))
            begin, end = int(starts[first]), int(stops[last - 1])
            rows = np.flatnonzero(self.kept_rows[begin - self.rows.start : end - self.rows.start]) + begin
            lengths = self._dataset.sequence_lengths[rows].astype(np.int64)
            yield self._dataset.gather(rows, np.zeros_like(rows), lengths).view(np.uint8)
            first = last


def byte_pieces(dataset: IndexedDataset, begin: int, length: int) -> Iterator[Piece]:
    """Yields what lies in bytes [begin, begin + length), among those that pointers lead into, without gaps."""
    sections = dataset.sections
    for number, offset, count in dataset.extents.pieces(begin, length):
        path = sections[number].path
        if not is_remote(path):
            yield FilePiece(path, offset, count, dataset.version_of_section(number))
            continue
        first = sections[number].start + offset
        for at in range(first, first + count, _READ_BYTES):
            yield dataset.byte_source.read(at, min(_READ_BYTES, first + count - at))
